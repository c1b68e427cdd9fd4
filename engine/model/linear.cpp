#include "engine/model/linear.h"

namespace dstrain {

Linear Linear::declare(Blueprint& blueprint,
                       std::span<const Part> parts,
                       std::int64_t inputs,
                       bool bias,
                       float deviation) {
  Linear linear;
  linear.num_parts_ = static_cast<int>(parts.size());
  linear.inputs_ = inputs;
  for (const Part& part : parts) {
    const ParamRef ref = blueprint.add_param({.name = part.name + ".weight",
                                              .shape = {part.outputs, inputs},
                                              .init = Init::kNormal,
                                              .deviation = deviation,
                                              .decays = true,
                                              .hidden_matrix = true});
    linear.weight_ = linear.outputs_ == 0 ? ref : linear.weight_;
    linear.outputs_ += part.outputs;
  }
  for (const Part& part : parts) {
    if (bias) {
      const ParamRef ref = blueprint.add_param({.name = part.name + ".bias",
                                                .shape = {part.outputs},
                                                .init = Init::kZeros,
                                                .decays = false});
      linear.bias_ = linear.bias_.index < 0 ? ref : linear.bias_;
    }
  }
  return linear;
}

void Linear::forward(const ExecContext& context, ConstTensor x, Tensor y) const {
  const ConstTensor weight = context.params(weight_, num_parts_, {outputs_, inputs_});
  const ConstTensor bias =
      bias_.index < 0 ? ConstTensor{} : context.params(bias_, num_parts_, {outputs_});
  context.ops.linear_forward(x, weight, bias, y, context.compute);
}

void Linear::backward(const ExecContext& context,
                      ConstTensor dy,
                      ConstTensor x,
                      Tensor dx,
                      const GradTarget& gradients) const {
  const ConstTensor weight = context.params(weight_, num_parts_, {outputs_, inputs_});
  context.ops.linear_backward_input(dy, weight, dx, context.compute);
  context.ops.linear_backward_weight(dy, x, gradients.params(weight_, num_parts_, weight.shape()),
                                     gradients.write, context.compute);
  if (bias_.index >= 0) {
    context.ops.linear_backward_bias(dy, gradients.params(bias_, num_parts_, {outputs_}),
                                     gradients.write, context.compute);
  }
}

}  // namespace dstrain
