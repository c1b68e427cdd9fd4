#include "engine/model/norm.h"

namespace dstrain {

Norm Norm::declare(const LayerShape& shape,
                   const NormSpec& spec,
                   const std::string& name,
                   Origin residual,
                   Output output,
                   Blueprint& blueprint) {
  Norm norm;
  norm.residual_ = shape.add_activation(blueprint, name, "residual",
                                        {shape.stream_tokens(), shape.model.hidden_size},
                                        shape.compute, residual, LayerKind::kNorm);
  norm.declare_own(shape, spec, name, output, blueprint);
  return norm;
}

Norm Norm::declare_beside(const Norm& other,
                          const LayerShape& shape,
                          const NormSpec& spec,
                          const std::string& name,
                          Blueprint& blueprint) {
  Norm norm;
  norm.residual_ = other.residual_;
  norm.declare_own(shape, spec, name, Output::kKept, blueprint);
  return norm;
}

void Norm::declare_own(const LayerShape& shape,
                       const NormSpec& spec,
                       const std::string& name,
                       Output output,
                       Blueprint& blueprint) {
  const Shape activations{shape.stream_tokens(), shape.model.hidden_size};
  spec_ = spec;
  weight_ = blueprint.add_param(shape.param(shape.tensor_named(name + ".weight")));
  if (const TensorDecl* bias = find_tensor(shape.tensors, name + ".bias")) {
    bias_ = blueprint.add_param(shape.param(*bias));
  }
  const BufferDecl scratch{name.substr(name.rfind('.') + 1) + "/output", activations, shape.compute,
                           Lifetime::kScratch, LayerKind::kNorm};
  // Statistics of each row of the residual.
  if (output == Output::kKept) {
    output_ = shape.add_activation(blueprint, name, "output", activations, shape.compute,
                                   Origin::kRowwise, LayerKind::kNorm);
  } else if (output == Output::kPassedOn) {
    output_ = blueprint.add_buffer(scratch);
  } else if (output == Output::kHandedOn) {
    output_ = shape.add_handed_on(blueprint, scratch);
  }
  stats_ = shape.add_activation(blueprint, name, "stats", {shape.stream_tokens(), 2}, DType::kF32,
                                Origin::kRowwise, LayerKind::kNorm);
}

void Norm::forward(const LayerContext& context, int slot, ConstTensor x, ConstTensor delta) const {
  forward_into(context, slot, x, delta, output(context, slot));
}

void Norm::forward_into(
    const LayerContext& context, int slot, ConstTensor x, ConstTensor delta, Tensor y) const {
  const Tensor kept = residual(context, slot);
  check(!delta.empty() || x.data() == kept.data(), "without a delta, x is the residual itself");
  context.ops.norm_forward({.kind = spec_.kind,
                            .epsilon = spec_.epsilon,
                            .x_NC = x,
                            .delta_NC = delta,
                            .weight_C = context.param(weight_),
                            .bias_C = bias_.index < 0 ? ConstTensor{} : context.param(bias_),
                            .residual_NC = kept,
                            .y_NC = y,
                            .stats_N2 = context.activation(stats_, slot)},
                           context.compute);
}

Tensor Norm::residual(const LayerContext& context, int slot) const {
  return context.activation(residual_, slot);
}

Tensor Norm::output(const LayerContext& context, int slot) const {
  return context.activation(output_, slot);
}

void Norm::backward(const LayerContext& context,
                    int slot,
                    ConstTensor dy,
                    Tensor dx,
                    Write dx_write,
                    const GradTarget& gradients) const {
  context.ops.norm_backward({.kind = spec_.kind,
                             .dy_NC = dy,
                             .x_NC = residual(context, slot),
                             .weight_C = context.param(weight_),
                             .stats_N2 = context.buffer(stats_, slot),
                             .dx_NC = dx,
                             .dx_write = dx_write,
                             .dweight_C = gradients.param(weight_),
                             .dbias_C = bias_.index < 0 ? Tensor{} : gradients.param(bias_),
                             .parameter_write = gradients.write},
                            context.compute);
}

}  // namespace dstrain
