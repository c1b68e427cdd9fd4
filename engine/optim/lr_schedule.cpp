#include "engine/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dstrain {
namespace {

/// Share of the warm-up that is done at 0 ≤ k < warmup_steps; DeepSpeed's "log" and "linear".
double warmup_share(WarmupType type, std::int64_t k, std::int64_t warmup_steps) {
  const auto steps = static_cast<double>(warmup_steps);
  return type == WarmupType::kLog ? std::log(static_cast<double>(k + 1)) / std::log(steps)
                                  : static_cast<double>(k) / steps;
}

/// WarmupLR and WarmupDecayLR: from min to max, then constant or linearly to zero.
double warmup_rate(const SchedulerConfig& s, double optimizer_rate, std::int64_t k) {
  const std::int64_t warmup_steps = std::max<std::int64_t>(2, s.warmup_num_steps);
  const double min = s.warmup_min_lr;
  const double max = s.warmup_max_lr.value_or(optimizer_rate);
  if (k < 0) {
    return min;
  }
  double share = 1.0;
  if (k < warmup_steps) {
    share = warmup_share(s.warmup_type, k, warmup_steps);
  } else if (s.kind == SchedulerKind::kWarmupDecay) {
    const std::int64_t total = s.total_num_steps.value_or(0);
    share = std::max(0.0, static_cast<double>(total - k) /
                              static_cast<double>(std::max<std::int64_t>(1, total - warmup_steps)));
  }
  return min + (max - min) * share;
}

/// WarmupCosineLR: ratios of the optimizer's own rate; half a cosine down to cos_min_ratio.
double cosine_rate(const SchedulerConfig& s, double optimizer_rate, std::int64_t k) {
  const std::int64_t warmup_steps = std::max<std::int64_t>(2, s.warmup_num_steps);
  if (k < 0) {
    return 0.0;
  }
  if (k < warmup_steps) {
    const double share = warmup_share(s.warmup_type, k, warmup_steps);
    return optimizer_rate * (s.warmup_min_ratio + (1.0 - s.warmup_min_ratio) * share);
  }
  const std::int64_t decay_steps =
      std::max<std::int64_t>(1, s.total_num_steps.value_or(0) - warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(k - warmup_steps + 1) / static_cast<double>(decay_steps));
  const double cosine = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return optimizer_rate * std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * cosine);
}

}  // namespace

double learning_rate_at(const SchedulerConfig& scheduler, double optimizer_rate, std::int64_t k) {
  switch (scheduler.kind) {
    case SchedulerKind::kConstant:
      return optimizer_rate;
    case SchedulerKind::kWarmup:
    case SchedulerKind::kWarmupDecay:
      return warmup_rate(scheduler, optimizer_rate, k);
    case SchedulerKind::kWarmupCosine:
      return cosine_rate(scheduler, optimizer_rate, k);
    case SchedulerKind::kRangeTest:
    case SchedulerKind::kOneCycle:
      break;
  }
  return optimizer_rate;
}

}  // namespace dstrain
