#include "engine/train/gradient_probe.h"

#include <cmath>

namespace dstrain {

GradTarget GradientProbe::grad_target(int unit, std::int64_t /*micro_batch*/) {
  GradTarget& target = targets_.at(static_cast<std::size_t>(unit));
  target = inner_.grad_target(unit, 0);
  return target;
}

void GradientProbe::unit_grads_ready(int unit, std::int64_t micro_batch, bool /*last*/) {
  const ExecContext& context = parts_.context;
  const auto params = static_cast<int>(parts_.shards.unit(unit).params.size());
  for (int param = 0; param < params && !finding_; ++param) {
    double sum_of_squares = 0.0;
    context.ops.sum_of_squares(targets_.at(static_cast<std::size_t>(unit)).param({unit, param}),
                               parts_.norm_total, Write::kOverwrite, context.compute);
    context.device.copy_to_host(parts_.norm_total, &sum_of_squares, context.compute);
    context.compute.synchronize();
    if (!std::isfinite(sum_of_squares)) {
      finding_ = Finding{.micro_batch = micro_batch, .unit = unit, .param = param};
    }
  }
}

StepStats GradientProbe::step(const StepParams& /*params*/) {
  fail_check("a probe updates nothing", std::source_location::current());
}

}  // namespace dstrain
