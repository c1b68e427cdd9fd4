#include "cmd/watch/watched_run.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include "engine/config/config_error.h"
#include "engine/train/records/recent_ranks.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostHistory = 4 << 20;  // bytes of metrics.jsonl
constexpr std::size_t kMostPoints = 8192;
constexpr std::int64_t kAccountedSteps = 20;

/// Keeps every second value, each the mean of two, where there are too many.
void thin_out(std::vector<double>& values) {
  if (values.size() < kMostPoints) return;
  for (std::size_t i = 0; i < values.size() / 2; ++i) {
    values[i] = 0.5 * (values[2 * i] + values[2 * i + 1]);
  }
  values.resize(values.size() / 2);
}

std::vector<double> peaks_of(const std::filesystem::path& folder) {
  Json line = last_step_line(folder / RecentRanks::kFile);
  if (line.is_null()) line = last_step_line(folder / "ranks.jsonl");
  try {
    return line.at("memory_bytes").at("peak").get<std::vector<double>>();
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace

std::optional<double> WatchedRun::seconds_left() const {
  if (!overview.total_steps || !account || account->steps() < 1) return std::nullopt;
  const auto left = static_cast<double>(*overview.total_steps - overview.step());
  return left * account->wall / static_cast<double>(account->steps());
}

RunWatcher::RunWatcher(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code none;
  const auto bytes = std::filesystem::file_size(folder_ / "metrics.jsonl", none);
  if (!none) read_ = std::max<std::int64_t>(0, static_cast<std::int64_t>(bytes) - kMostHistory);
  look();
}

void RunWatcher::look() {
  run_.overview = overview_of(folder_, std::chrono::milliseconds(0));
  read_new_lines();
  try {
    run_.account = account_of(folder_, kAccountedSteps);
  } catch (const ConfigError&) {  // no two steps yet
    run_.account.reset();
  }
  run_.ranks = rank_seconds(folder_);
  run_.peak_bytes = peaks_of(folder_);
}

void RunWatcher::read_new_lines() {
  std::ifstream in(folder_ / "metrics.jsonl", std::ios::binary);
  if (!in) return;
  in.seekg(0, std::ios::end);
  if (const auto bytes = static_cast<std::int64_t>(in.tellg()); bytes < read_) {
    read_ = 0;  // it began anew, or resumed from an earlier step
    run_.losses.clear();
    run_.validations.clear();
  }
  in.seekg(read_);
  for (std::string text; std::getline(in, text) && !in.eof();) {
    read_ += static_cast<std::int64_t>(text.size()) + 1;
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (const auto loss = number_at(line, "loss")) run_.losses.push_back(*loss);
    if (const auto loss = number_at(line, "validation_loss")) run_.validations.push_back(*loss);
    thin_out(run_.losses);
    thin_out(run_.validations);
  }
}

}  // namespace dstrain
