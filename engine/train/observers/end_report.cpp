#include "engine/train/observers/end_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"

namespace dstrain {

EndReport::EndReport(std::filesystem::path folder, std::vector<DataSource> sources)
    : folder_(std::move(folder)), sources_(std::move(sources)) {}

void EndReport::on_end(const EndOfRun& end) {
  spdlog::info("{} at step {}{}", end.signal != 0 ? "stopped" : "finished", end.step,
               end.validation_loss ? fmt::format(", validation loss {:.4f}{}", *end.validation_loss,
                                                 end.by_pairs ? "" : " nats per token")
                                   : "");
  spdlog::info("data        {}", epochs_text(sources_, end.epochs));
  spdlog::info("memory      {}", memory_text(end.memory));
  if (end.failed_saves > 0) {
    spdlog::warn("{} saves failed during the run; the last one, of step {}, did not",
                 end.failed_saves, end.saved_step);
  }
  spdlog::info("metrics     {}", (folder_ / "metrics.jsonl").string());
  spdlog::info("checkpoint  {}", end.checkpoint.value_or("none").string());
  spdlog::info("config      {}", (folder_ / "config.resolved.json").string());
}

std::string epochs_text(const std::vector<DataSource>& sources, const std::vector<double>& epochs) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, sources.size()); ++i) {
    text += fmt::format("{}{:.2f}{} of {}", i == 0 ? "" : ", ", epochs[i], i == 0 ? " epochs" : "",
                        sources[i].prefix);
  }
  if (sources.size() > kShown) {
    const auto [least, most] = std::minmax_element(epochs.begin(), epochs.end());
    text += fmt::format(" and {} others; {:.2f} to {:.2f} of all", sources.size() - kShown, *least,
                        *most);
  }
  return text;
}

std::string memory_text(const std::vector<RankMemory>& by_rank) {
  const std::size_t rank = fullest_rank(by_rank);
  const RankMemory& fullest = by_rank[rank];
  std::string text =
      fmt::format("planned {} + {} overhead, measured peak {}", size_text(fullest.planned_bytes),
                  size_text(fullest.overhead_bytes), size_text(fullest.peak_bytes));
  if (by_rank.size() > 1) {
    text += fmt::format(" on rank {}, which holds most", rank);
  }
  return text;
}

}  // namespace dstrain
