// The objective that an engine trains for, where it weighs targets.
#include <utility>

#include "engine/train/engine.h"
#include "kernels/core/check.h"

namespace dstrain {

std::unique_ptr<Objective> Engine::set_objective(std::unique_ptr<Objective> objective) {
  check(objective->weighing() == nullptr || plan_.shape.weighs_targets,
        "targets are to be weighed, which is not planned");
  if (objective->weighing() != nullptr && sequence_exchange_ == nullptr) {
    sequence_exchange_ = std::make_unique<SequenceExchange>(plan_, context_);
  }
  return std::exchange(objective_, std::move(objective));
}

/// Ranks that share sequences know the losses of all their targets: the first counts.
bool Engine::tells_losses() const {
  return knows_losses(plan_.chunks.back().stage) && plan_.mesh.index(kContextAxes, plan_.rank) == 0;
}

ObjectiveSums Engine::take_sums() {
  WeighingObjective* const weighing = objective_->weighing();
  if (weighing == nullptr) return {};
  const ObjectiveSums sums = weighing->take_sums();
  return tells_losses() ? sums : ObjectiveSums{};
}

}  // namespace dstrain
