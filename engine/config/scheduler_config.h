// The learning-rate schedule of a run, as the user wrote it: part of config.h.
#pragma once

#include <cstdint>
#include <optional>

namespace dstrain {

enum class SchedulerKind : std::uint8_t {
  kConstant,
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
  kRangeTest,
  kOneCycle
};
enum class WarmupType : std::uint8_t { kLog, kLinear };

/// LRRangeTest's params (Smith 2017): the rate grows until training breaks.
struct RangeTestConfig {
  double min_lr = 1e-3;           ///< lr_range_test_min_lr
  std::int64_t step_size = 2000;  ///< lr_range_test_step_size, updates
  double step_rate = 1.0;         ///< lr_range_test_step_rate
  bool staircase = false;         ///< lr_range_test_staircase

  bool operator==(const RangeTestConfig&) const = default;
};

/// OneCycle's params (Smith & Topin 2017): up, down, then decay; beta1 goes the other way.
struct OneCycleConfig {
  double min_lr = 0.0;  ///< cycle_min_lr
  double max_lr = 0.0;  ///< cycle_max_lr
  double decay_lr_rate = 0.0;
  std::int64_t first_step_size = 2000;           ///< cycle_first_step_size, updates
  std::optional<std::int64_t> second_step_size;  ///< absent: as the first
  std::int64_t first_stair_count = 0;
  std::optional<std::int64_t> second_stair_count;  ///< absent: as the first
  std::int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double min_momentum = 0.8;         ///< cycle_min_mom
  double max_momentum = 0.9;         ///< cycle_max_mom
  double decay_momentum_rate = 0.0;  ///< decay_mom_rate

  bool operator==(const OneCycleConfig&) const = default;
};

/// "scheduler"; kConstant where there is none. Unresolved ("auto" or absent) values are empty.
struct SchedulerConfig {
  SchedulerKind kind = SchedulerKind::kConstant;
  WarmupType warmup_type = WarmupType::kLog;
  std::int64_t warmup_num_steps = 1000;
  std::optional<std::int64_t> total_num_steps;  ///< "auto": training.steps
  double warmup_min_lr = 0.0;
  std::optional<double>
      warmup_max_lr;              ///< WarmupLR: absent is the optimizer's; WarmupDecayLR: 0.001
  double warmup_min_ratio = 0.0;  ///< WarmupCosineLR
  double cos_min_ratio = 1e-4;
  RangeTestConfig range_test;
  OneCycleConfig one_cycle;

  bool operator==(const SchedulerConfig&) const = default;
};

}  // namespace dstrain
