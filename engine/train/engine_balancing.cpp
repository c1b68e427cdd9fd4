// The engine's part in the biases that keep experts busy (ExpertsSpec::bias_update_rate): they move
// by how many tokens of a step chose each expert, of all ranks together. The numbers are whole and
// exact, so that every layout moves them alike.
#include <algorithm>
#include <span>
#include <vector>

#include "engine/train/engine.h"
#include "kernels/math/balancing_bias.h"

namespace dstrain {

/// `updated`: the step was not skipped.
void Engine::move_balancing_biases(const std::vector<LayerRouting>& routing, bool updated) {
  const std::vector<UntrainedDecl>& biases = plan_.blueprint.untrained();
  const float rate = plan_.model.experts.bias_update_rate;
  if (biases.empty() || !updated || rate == 0.0F) {
    return;
  }
  const auto experts = static_cast<std::size_t>(plan_.model.experts.count);
  std::vector<float> values(biases.size() * experts);
  const auto of_bias = [&](std::size_t i) {
    return std::span(values).subspan(i * experts, experts);
  };
  for (std::size_t i = 0; i < biases.size(); ++i) {
    context_.device.copy_to_host(arena_.buffer(biases[i].buffer), of_bias(i).data(),
                                 context_.compute);
  }
  context_.compute.synchronize();
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const auto layer = std::find_if(
        routing.begin(), routing.end(),
        [&](const LayerRouting& candidate) { return candidate.layer == biases[i].block; });
    check(layer != routing.end(), "no loads of layer {}, whose bias they move", biases[i].block);
    if (!plan_.shape.trains({.name = biases[i].name})) continue;
    move_balancing_bias(of_bias(i), layer->chosen, rate);
    context_.device.copy_from_host(of_bias(i).data(), arena_.buffer(biases[i].buffer),
                                   context_.compute);
  }
  context_.compute.synchronize();
}

}  // namespace dstrain
