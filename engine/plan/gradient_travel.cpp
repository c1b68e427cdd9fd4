#include "engine/plan/gradient_travel.h"

#include <algorithm>

namespace dstrain {
namespace {

/// Multiples of `interval` in [begin, end), of positive numbers.
std::int64_t multiples(std::int64_t begin, std::int64_t end, std::int64_t interval) {
  return begin >= end ? 0 : (end - 1) / interval - (begin - 1) / interval;
}

}  // namespace

template <typename Visit>
void ZeroOneSchedule::for_each_stage(std::int64_t updates, Visit&& visit) const {
  const std::int64_t end = updates + 1;
  const std::int64_t frozen = std::min(end, config_.freeze_step + 1);
  Stage stage;
  for (; stage.begin < frozen; stage.begin = stage.end, stage.interval *= 2) {
    const std::int64_t before = (stage.begin - 1) / stage.interval;  // multiples before the stage
    stage.end = std::min(frozen, (before + config_.var_update_scaler) * stage.interval + 1);
    visit(stage);
  }
  stage.interval = 1;
  for (; stage.begin < end; stage.begin = stage.end) {
    const bool is_last = stage.interval == config_.local_step_clipper;
    stage.end = is_last ? end : std::min(end, stage.begin + config_.local_step_scaler);
    visit(stage);
    stage.interval = std::min(config_.local_step_clipper, 2 * stage.interval);
  }
}

GradientTravel ZeroOneSchedule::travel(std::int64_t update) const {
  std::int64_t interval = 1;
  for_each_stage(update, [&](const Stage& stage) { interval = stage.interval; });
  const bool is_due = update % interval == 0;
  if (is_local(update)) return is_due ? GradientTravel::kCoded : GradientTravel::kStays;
  return is_due ? GradientTravel::kSummed : GradientTravel::kCoded;
}

std::int64_t ZeroOneSchedule::count(GradientTravel travel, std::int64_t updates) const {
  std::int64_t count = 0;
  for_each_stage(updates, [&](const Stage& stage) {
    const std::int64_t due = multiples(stage.begin, stage.end, stage.interval);
    const std::int64_t others = stage.end - stage.begin - due;
    const bool local = is_local(stage.begin);
    if (travel == (local ? GradientTravel::kCoded : GradientTravel::kSummed)) count += due;
    if (travel == (local ? GradientTravel::kStays : GradientTravel::kCoded)) count += others;
  });
  return count;
}

GradientTravel travel_of(const OptimizerConfig& config, std::int64_t update) {
  if (config.kind == OptimizerKind::kZeroOneAdam) return ZeroOneSchedule(config).travel(update);
  return sends_signs(config.kind) && update > config.freeze_step ? GradientTravel::kCoded
                                                                 : GradientTravel::kSummed;
}

GradientTravel travel_of(const OptimizerConfig& config,
                         const CompressionConfig& compression,
                         std::int64_t update) {
  if (compression.kind == CompressionKind::kNone) return travel_of(config, update);
  return update > compression.start_step ? GradientTravel::kCoded : GradientTravel::kSummed;
}

std::int64_t count_travel(const OptimizerConfig& config,
                          const CompressionConfig& compression,
                          GradientTravel travel,
                          std::int64_t updates) {
  const bool is_compressed = compression.kind != CompressionKind::kNone;
  if (config.kind == OptimizerKind::kZeroOneAdam && !is_compressed) {
    return ZeroOneSchedule(config).count(travel, updates);
  }
  const std::int64_t exact = is_compressed              ? compression.start_step
                             : sends_signs(config.kind) ? config.freeze_step
                                                        : updates;
  const std::int64_t summed = std::min(updates, exact);
  return travel == GradientTravel::kSummed  ? summed
         : travel == GradientTravel::kCoded ? updates - summed
                                            : 0;
}

}  // namespace dstrain
