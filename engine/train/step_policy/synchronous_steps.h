// Synchronous training: every rank takes part in every step, sums gradients with the others and
// hears of all of them before the next. A step whose gradients are not finite is skipped, as
// DeepSpeed does it: the data advances, optimizer and schedule do not.
#pragma once

#include <string>

#include "engine/optim/loss_scaler.h"
#include "engine/train/step_policy/step_policy.h"

namespace dstrain {

class SynchronousSteps final : public StepPolicy {
 public:
  /// `engine` outlives it.
  SynchronousSteps(Engine& engine, OwnRank facts);

  void take_up(const TrainingState& state) override;
  StepOutcome step(TrainingState& state,
                   const LoadBatch& data,
                   const std::function<void()>& before_update) override;
  Agreement agree() override { return agree(EngineStep()); }

 private:
  /// Collective.
  Agreement agree(const EngineStep& step);
  /// Everything that a step is trained with but its gradients.
  [[nodiscard]] StepParams params_of_next_step(const TrainingState& state) const;
  /// Counts a step whose gradients were not finite. Throws where skipping cannot help.
  void skip(TrainingState& state,
            const LoadBatch& data,
            const StepParams& params,
            double loss,
            double grad_norm);
  /// "first in the gradient of blocks.1.mlp.up.weight on rank 2, micro-batch 0".
  std::string culprit(const TrainingState& state, const LoadBatch& data, const StepParams& params);

  Engine& engine_;
  const UpdatePlan& update_;
  OwnRank facts_;
  LossScaler scaler_;
};

}  // namespace dstrain
