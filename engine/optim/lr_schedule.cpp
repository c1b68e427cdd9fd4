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

/// LRRangeTest (Smith 2017): grows by step_rate of the first rate every step_size updates.
double range_test_rate(const RangeTestConfig& s, std::int64_t k) {
  const double intervals = static_cast<double>(k + 1) / static_cast<double>(s.step_size);
  return s.min_lr * (1.0 + s.step_rate * (s.staircase ? std::floor(intervals) : intervals));
}

/// OneCycle (Smith & Topin 2017):
///
///   rate    ╱╲            momentum  ╲  ╱‾‾‾    up for S1 updates, down for S2, then decay
///         ╱    ╲___                  ╲╱
class OneCycle {
 public:
  explicit OneCycle(const OneCycleConfig& s)
      : s_(s), first_(s.first_step_size), second_(s.second_step_size.value_or(first_)) {}

  [[nodiscard]] double rate(std::int64_t k) const {
    if (k < first_ + second_) {
      return s_.min_lr + (s_.max_lr - s_.min_lr) * height(k);
    }
    return s_.min_lr / decay(s_.decay_lr_rate, k);
  }

  [[nodiscard]] CycledBetas betas(std::int64_t k) const {
    constexpr double kBeta2 = 0.99;  // DeepSpeed's, whatever the optimizer's own is
    if (k < 0) {
      return {s_.min_momentum, kBeta2};  // DeepSpeed's constructor starts at the wrong end
    }
    if (k < first_ + second_) {
      return {s_.max_momentum - (s_.max_momentum - s_.min_momentum) * height(k), kBeta2};
    }
    return {s_.max_momentum * decay(s_.decay_momentum_rate, k), kBeta2};
  }

 private:
  /// 0 at both ends of the cycle and 1 at its peak; with stairs, the height of the stair reached.
  [[nodiscard]] double height(std::int64_t k) const {
    const std::int64_t at = (k + 1) % (first_ + second_);  // 0 again at the end of the cycle
    const bool rises = at <= first_;
    const auto done = static_cast<double>(rises ? at : first_ + second_ - at);
    const auto steps = static_cast<double>(rises ? first_ : second_);
    const std::int64_t stairs =
        rises ? s_.first_stair_count : s_.second_stair_count.value_or(s_.first_stair_count);
    if (stairs == 0) {
      return done / steps;
    }
    const auto count = static_cast<double>(stairs);
    return std::floor(done * count / steps) / count;
  }

  [[nodiscard]] double decay(double rate, std::int64_t k) const {
    if (s_.decay_step_size == 0) {
      return 1.0;
    }
    const auto updates = static_cast<double>(k - first_ - second_ + 1);
    return 1.0 + rate * updates / static_cast<double>(s_.decay_step_size);
  }

  const OneCycleConfig& s_;
  std::int64_t first_;   // S1, updates
  std::int64_t second_;  // S2
};

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
      return range_test_rate(scheduler.range_test, k);
    case SchedulerKind::kOneCycle:
      return OneCycle(scheduler.one_cycle).rate(k);
  }
  return optimizer_rate;
}

std::optional<CycledBetas> betas_at(const SchedulerConfig& scheduler, std::int64_t k) {
  if (scheduler.kind != SchedulerKind::kOneCycle || !scheduler.one_cycle.cycle_momentum) {
    return std::nullopt;
  }
  return OneCycle(scheduler.one_cycle).betas(k);
}

}  // namespace dstrain
