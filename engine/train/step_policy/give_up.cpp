#include <fmt/format.h>

#include "engine/train/run_errors.h"
#include "engine/train/step_policy/step_policy.h"

namespace dstrain {

void give_up(std::int64_t step,
             std::int64_t saved_step,
             const std::string& what,
             const std::string& advice) {
  throw NumericalError(
      fmt::format("step {}: {}; this step is not saved, {}. {}", step, what,
                  saved_step < 0 ? "and there is no checkpoint yet"
                                 : fmt::format("the newest checkpoint is of step {}", saved_step),
                  advice));
}

}  // namespace dstrain
