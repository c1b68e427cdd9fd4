// The objective of pretraining: every position predicts the token after it, and each one that
// counts has the same weight, whatever rank it is on.
#pragma once

#include "engine/train/objective/objective.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class NextTokenObjective final : public Objective {
 public:
  explicit NextTokenObjective(const RunPlan& plan);

  [[nodiscard]] float gradient_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

 private:
  std::int64_t at_once_;         ///< samples of one micro-batch of each rank
  std::int64_t gradient_ranks_;  ///< among which gradients are summed
  double before_sum_;            ///< GradientAveraging::before_sum
};

}  // namespace dstrain
