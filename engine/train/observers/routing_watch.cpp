#include "engine/train/observers/routing_watch.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

constexpr double kChoicesToMiss = 100.0;  // of an even router, before an idle expert is no chance
constexpr double kMostShare = 0.5;        // of the tokens, for one expert
constexpr double kMostLoad = 2.0;         // over the mean
constexpr std::size_t kNamed = 8;         // experts that a warning lists

}  // namespace

void RoutingWatch::on_step(const StepMetrics& metrics, bool /*is_last*/) {
  for (const LayerRouting& layer : metrics.routing) {
    LayerRouting& sum = sums_[layer.layer];
    sum.layer = layer.layer;
    sum.tokens += layer.tokens;
    sum.chosen.resize(layer.chosen.size());
    std::transform(layer.chosen.begin(), layer.chosen.end(), sum.chosen.begin(), sum.chosen.begin(),
                   std::plus<>{});
  }
  if (++steps_ < kSteps) {
    return;
  }
  for (const auto& [layer, sum] : sums_) {
    const std::string wrong = collapse_text(sum);
    if (wrong.empty() || !warned_.insert(layer).second) continue;
    spdlog::warn(
        "layer {}, steps {} to {}: {}; experts that see few tokens stay untrained (raise "
        "router_aux_loss_coef, with output_router_logits true; experts.jsonl has the numbers)",
        layer, metrics.step - kSteps + 1, metrics.step, wrong);
  }
  sums_.clear();
  steps_ = 0;
}

std::string collapse_text(const LayerRouting& routing) {
  const auto experts = static_cast<double>(routing.chosen.size());
  const auto choices = static_cast<double>(
      std::accumulate(routing.chosen.begin(), routing.chosen.end(), std::int64_t{0}));
  std::vector<std::size_t> idle;
  for (std::size_t expert = 0; expert < routing.chosen.size(); ++expert) {
    if (routing.chosen[expert] == 0) idle.push_back(expert);
  }
  const std::string tokens = grouped(routing.tokens) + " tokens";
  std::string text;
  if (!idle.empty() && choices / experts >= kChoicesToMiss) {
    const std::size_t named = std::min(idle.size(), kNamed);
    text = fmt::format("{} of {} experts ({}{}) {} chosen by none of {}", idle.size(),
                       routing.chosen.size(), fmt::join(idle.begin(), idle.begin() + named, ", "),
                       named < idle.size() ? ", …" : "", idle.size() == 1 ? "was" : "were", tokens);
  }
  const auto busiest = std::max_element(routing.chosen.begin(), routing.chosen.end());
  const double share = static_cast<double>(*busiest) /
                       static_cast<double>(std::max<std::int64_t>(1, routing.tokens));
  if (share > kMostShare && routing.busiest() > kMostLoad) {
    text += fmt::format("{}expert {} was chosen by {:.0f} % of {}, {:.1f} times the mean",
                        text.empty() ? "" : ", and ", busiest - routing.chosen.begin(),
                        100.0 * share, tokens, routing.busiest());
  }
  return text;
}

}  // namespace dstrain
