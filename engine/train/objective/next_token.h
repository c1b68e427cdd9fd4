// The objective of pretraining: every position predicts the token after it, and each counts alike.
#pragma once

#include "engine/train/objective/objective.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class NextTokenObjective final : public Objective {
 public:
  explicit NextTokenObjective(const RunPlan& plan);

  [[nodiscard]] float gradient_scale(double loss_scale) const override;
  [[nodiscard]] std::int64_t counted_targets(std::int64_t samples) const override;
  [[nodiscard]] double mean_loss(double loss_sum) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t samples) const override;

 private:
  std::int64_t sequence_;           ///< targets of a sample
  std::int64_t targets_;            ///< of a step, on all ranks
  std::int64_t targets_of_a_rank_;  ///< of a step, on one of those among which gradients are summed
  double before_sum_;               ///< GradientAveraging::before_sum
};

}  // namespace dstrain
