// Schedules as pure functions, indexed exactly as DeepSpeed's: its scheduler object is built with
// counter k = -1 and stepped after each optimizer update, so update j (1, 2, …) runs with what the
// schedule says at k = j - 2. With linear warm-up from zero the first two updates have rate 0.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/config/scheduler_config.h"

namespace dstrain {

/// The rate at DeepSpeed's counter k (≥ -1). The scheduler config must be resolved.
double learning_rate_at(const SchedulerConfig& scheduler, double optimizer_rate, std::int64_t k);

/// Rate of the j-th successful optimizer update, j ≥ 1.
inline double learning_rate_of_update(const SchedulerConfig& scheduler,
                                      double optimizer_rate,
                                      std::int64_t j) {
  return learning_rate_at(scheduler, optimizer_rate, j - 2);
}

/// The values that take the place of the optimizer's betas while OneCycle cycles the momentum.
struct CycledBetas {
  double beta1 = 0.0;
  double beta2 = 0.0;

  bool operator==(const CycledBetas&) const = default;
};

/// Betas at DeepSpeed's counter k (≥ -1); nothing where the optimizer's own stay.
std::optional<CycledBetas> betas_at(const SchedulerConfig& scheduler, std::int64_t k);

/// Betas of the j-th successful optimizer update, j ≥ 1.
inline std::optional<CycledBetas> betas_of_update(const SchedulerConfig& scheduler,
                                                  std::int64_t j) {
  return betas_at(scheduler, j - 2);
}

}  // namespace dstrain
