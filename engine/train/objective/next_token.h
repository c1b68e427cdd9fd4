// The objective of pretraining: every position predicts the token after it, and each one that
// counts has the same weight, whatever rank it is on.
#pragma once

#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class NextTokenObjective final : public Objective {
 public:
  explicit NextTokenObjective(const RunPlan& plan) : scales_(plan) {}

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& step) const override {
    return scales_.of_mean(loss_scale, targets(step));
  }
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override {
    return gradient_scale(loss_scale, step);
  }
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override {
    return scales_.tokens(step);
  }
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

 private:
  GradientScales scales_;
};

}  // namespace dstrain
