// Objective: what a run's loss is taken over. The model computes a loss for each target; which of
// them count, what their sum is divided by and how much a gradient weighs is decided here, so that
// neither the engine nor the loop knows what a target is.
#pragma once

#include <cstdint>

namespace dstrain {

class Objective {
 public:
  Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;
  virtual ~Objective() = default;

  /// What the gradient of each target's loss is multiplied with on this rank, so that the sum over
  /// its micro-batches, and then over the ranks with GradientAveraging's factors, is the gradient
  /// of `loss_scale` times the loss that mean_loss() reports.
  [[nodiscard]] virtual float gradient_scale(double loss_scale) const = 0;
  /// Targets of so many samples that count in an evaluation.
  [[nodiscard]] virtual std::int64_t counted_targets(std::int64_t samples) const = 0;
  /// Nats per counted target, from their sum over all ranks: of an optimizer step, and of an
  /// evaluation of so many samples.
  [[nodiscard]] virtual double mean_loss(double loss_sum) const = 0;
  [[nodiscard]] virtual double mean_loss(double loss_sum, std::int64_t samples) const = 0;
};

}  // namespace dstrain
