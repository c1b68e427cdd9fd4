// Objective: what a run's loss is taken over. The model computes a loss for each target; which of
// them count, what their sum is divided by and how much a gradient weighs is decided here, so that
// neither the engine nor the loop knows what a target is.
#pragma once

#include <cstdint>

namespace dstrain {

/// The size of a step.
struct StepSize {
  std::int64_t micro_batches = 1;  ///< of a rank
  std::int64_t sequence = 1;       ///< tokens of a sequence
};

class Objective {
 public:
  Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;
  virtual ~Objective() = default;

  /// The factor by which the gradient of each target's loss is multiplied on this rank, so that the
  /// sum over its micro-batches, and then over the ranks with GradientAveraging's factors, is the
  /// gradient of `loss_scale` times the mean over all of the step's targets.
  [[nodiscard]] virtual float gradient_scale(double loss_scale, const StepSize& step) const = 0;
  /// The number of targets of a step, on all ranks, whether they count or not.
  [[nodiscard]] virtual std::int64_t targets(const StepSize& step) const = 0;
  /// Nats per target that counts, from their sum and their number over all ranks.
  [[nodiscard]] virtual double mean_loss(double loss_sum, std::int64_t counted) const = 0;
};

}  // namespace dstrain
