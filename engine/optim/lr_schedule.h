// Learning-rate schedules as pure functions, indexed exactly as DeepSpeed's: its scheduler object
// is built with counter k = -1 and stepped after each optimizer update, so update j (1, 2, …) runs
// with the rate at k = j - 2. With linear warm-up from zero the first two updates have rate 0.
#pragma once

#include <cstdint>

#include "engine/spec/config.h"

namespace dstrain {

/// Rate at DeepSpeed's counter k (≥ -1). The scheduler config must be resolved.
double learning_rate_at(const SchedulerConfig& scheduler, double optimizer_rate, std::int64_t k);

/// Rate of the j-th successful optimizer update, j ≥ 1.
inline double learning_rate_of_update(const SchedulerConfig& scheduler,
                                      double optimizer_rate,
                                      std::int64_t j) {
  return learning_rate_at(scheduler, optimizer_rate, j - 2);
}

}  // namespace dstrain
