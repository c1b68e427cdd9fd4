#include "engine/train/objective/next_token.h"

#include <algorithm>

#include "kernels/core/plain_nan.h"

namespace dstrain {

NextTokenObjective::NextTokenObjective(const RunPlan& plan)
    : at_once_(plan.batch.micro_batch * plan.batch.data_parallel),
      gradient_ranks_(plan.mesh.degree(kGradientAxes)),
      before_sum_(plan.update.averaging.before_sum) {}

float NextTokenObjective::gradient_scale(double loss_scale, const StepSize& step) const {
  const std::int64_t targets_of_a_rank = targets(step) / gradient_ranks_;
  return static_cast<float>(loss_scale * before_sum_ / static_cast<double>(targets_of_a_rank));
}

std::int64_t NextTokenObjective::targets(const StepSize& step) const {
  return step.micro_batches * at_once_ * step.sequence;
}

double NextTokenObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

}  // namespace dstrain
