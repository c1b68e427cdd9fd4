// GradientScales: the factors that make a sum over a rank's micro-batches, and then over the ranks,
// the gradient of a mean.
#pragma once

#include <cstdint>

#include "engine/train/objective/objective.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class GradientScales {
 public:
  explicit GradientScales(const RunPlan& plan)
      : at_once_(plan.batch.micro_batch * plan.batch.data_parallel),
        gradient_ranks_(plan.mesh.degree(kGradientAxes)),
        before_sum_(plan.update.averaging.before_sum) {}

  /// Tokens of all ranks.
  [[nodiscard]] std::int64_t tokens(const StepSize& step) const {
    return step.micro_batches * at_once_ * step.sequence;
  }
  /// The factor for `loss_scale` times the mean over `count` of all ranks.
  [[nodiscard]] double of_mean(double loss_scale, std::int64_t count) const {
    const double of_a_rank = static_cast<double>(count) / static_cast<double>(gradient_ranks_);
    return loss_scale * before_sum_ / of_a_rank;
  }

 private:
  std::int64_t at_once_;         // sequences of one micro-batch of each rank
  std::int64_t gradient_ranks_;  // among which gradients are summed
  double before_sum_;            // GradientAveraging::before_sum
};

}  // namespace dstrain
