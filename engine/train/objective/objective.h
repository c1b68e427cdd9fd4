// Objective: what a run's loss is taken over. The model computes a loss for each target; which of
// them count, what their sum is divided by and how much a gradient weighs is decided here, so that
// neither the engine nor the loop knows what a target is.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/train/batch_upload.h"

namespace dstrain {

/// The size of a step.
struct StepSize {
  std::int64_t micro_batches = 1;  ///< of a rank
  std::int64_t sequence = 1;       ///< tokens of a sequence
};

class WeighingObjective;

class Objective {
 public:
  Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;
  virtual ~Objective() = default;

  /// The factor by which the gradient of each target's loss is multiplied on this rank, so that the
  /// sum over its micro-batches, and then over the ranks with GradientAveraging's factors, is the
  /// gradient of `loss_scale` times the mean over all of the step's targets.
  [[nodiscard]] virtual double gradient_scale(double loss_scale, const StepSize& step) const = 0;
  /// The same for losses that every token of the step has, whether its target counts or not.
  [[nodiscard]] virtual double token_scale(double loss_scale, const StepSize& step) const = 0;
  /// The number of targets of a step, on all ranks, whether they count or not.
  [[nodiscard]] virtual std::int64_t targets(const StepSize& step) const = 0;
  /// The mean over what counts, from the sum and the number over all ranks.
  [[nodiscard]] virtual double mean_loss(double loss_sum, std::int64_t counted) const = 0;
  /// nullptr: every target that counts has the same weight, and its loss is what is minimised.
  virtual WeighingObjective* weighing() { return nullptr; }
};

/// What was found of the targets of some sequences, [B, T].
struct SequenceNumbers {
  std::span<const float> nats_BT;      ///< losses, 0 where no target counts
  std::span<const float> values_BT{};  ///< empty where there is no head of values
};
/// The derivatives of what is minimised by each of these; or empty.
struct SequenceWeights {
  std::span<float> nats_BT{};
  std::span<float> values_BT{};
};

struct SequenceLosses {
  BatchUse use = BatchUse::kTraining;
  std::int64_t first_sample = 0;
  std::int64_t counted_samples = 0;  ///< the first so many sequences count
  SequenceNumbers found;
};

/// The sums that an objective keeps: first what is minimised, then the number of groups, then what
/// else it counts.
using ObjectiveSums = std::array<double, 7>;

/// An objective that is a function of the losses of several targets: of the pairs of a step, or of
/// other groups, each within one sequence.
class WeighingObjective : public Objective {
 public:
  WeighingObjective* weighing() override { return this; }

  /// The samples from `start_sample` on are the step's, those of all ranks. Forgets sums.
  virtual void begin_step(std::int64_t start_sample, std::int64_t samples) = 0;
  /// Adds what is minimised of these sequences to the sums, and sets weights.
  virtual void weigh(const SequenceLosses& losses, const SequenceWeights& weights) = 0;
  /// What has been added up since the last call.
  virtual ObjectiveSums take_sums() = 0;
};

}  // namespace dstrain
