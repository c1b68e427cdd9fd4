#include "engine/train/objective/next_token.h"

#include "kernels/core/plain_nan.h"

namespace dstrain {

NextTokenObjective::NextTokenObjective(const RunPlan& plan)
    : sequence_(plan.batch.sequence),
      targets_(plan.batch.global_tokens()),
      targets_of_a_rank_(targets_ / plan.mesh.degree(kGradientAxes)),
      before_sum_(plan.update.averaging.before_sum) {}

float NextTokenObjective::gradient_scale(double loss_scale) const {
  return static_cast<float>(loss_scale * before_sum_ / static_cast<double>(targets_of_a_rank_));
}

std::int64_t NextTokenObjective::counted_targets(std::int64_t samples) const {
  return samples * sequence_;
}

double NextTokenObjective::mean_loss(double loss_sum) const {
  return plain_nan(loss_sum / static_cast<double>(targets_));
}

double NextTokenObjective::mean_loss(double loss_sum, std::int64_t samples) const {
  return plain_nan(loss_sum / static_cast<double>(counted_targets(samples)));
}

}  // namespace dstrain
