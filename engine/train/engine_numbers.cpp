// The numbers that the optimizer keeps beside tensors, for checkpoints.
#include <nlohmann/json.hpp>

#include "engine/checkpoint/agreement.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Ranks that share units know the same numbers, those of other pipeline stages know others.
Optimizer::Numbers Engine::optimizer_numbers() {
  if (!sends_signs(plan_.update.optimizer.kind)) return {};
  const Optimizer::Numbers mine = optimizer_->numbers(context_.site(Space::kDevice));
  nlohmann::json all = nlohmann::json::object();
  for (const std::string& text : gather_texts(nlohmann::json(mine).dump(), world())) {
    all.update(nlohmann::json::parse(text));
  }
  return nlohmann::json::parse(broadcast_text(all.dump(), 0, world()));
}

void Engine::restore_optimizer(const Optimizer::Numbers& numbers) {
  optimizer_->restore(context_.site(Space::kDevice), numbers);
}

}  // namespace dstrain
