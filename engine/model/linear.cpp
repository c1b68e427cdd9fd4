#include "engine/model/linear.h"

namespace dstrain {

Linear Linear::declare(const TensorShape& tensor,
                       std::span<const Part> parts,
                       const Options& options,
                       Blueprint& blueprint) {
  Linear linear;
  linear.num_parts_ = static_cast<int>(parts.size());
  linear.split_ = options.split;
  const bool by_inputs = options.split == Split::kInputs;
  linear.inputs_ = by_inputs ? options.inputs / tensor.ranks : options.inputs;
  linear.adds_bias_ = !by_inputs || tensor.rank == 0;
  // Rows of one part on this rank, and the first of them.
  const auto rows = [&](const Part& part) {
    return by_inputs ? part.outputs : part.outputs * part.copies / tensor.ranks;
  };
  const auto first_row = [&](const Part& part) {
    return by_inputs ? 0 : tensor.rank / part.copies * rows(part);
  };
  const auto copies_of = [&](const Part& part) {
    return TensorShare{.copies = part.copies,
                       .copy = tensor.rank % part.copies,
                       .partial_gradient = part.copies > 1};
  };
  for (const Part& part : parts) {
    ParamDecl weight{.name = part.name + ".weight",
                     .shape = {part.outputs, options.inputs},
                     .init = Init::kNormal,
                     .deviation = options.deviation,
                     .decays = true,
                     .hidden_matrix = true,
                     .share = copies_of(part)};
    weight.share.start = {first_row(part), by_inputs ? tensor.rank * linear.inputs_ : 0};
    weight.share.extent = {rows(part), linear.inputs_};
    const ParamRef ref = blueprint.add_param(std::move(weight));
    linear.weight_ = linear.outputs_ == 0 ? ref : linear.weight_;
    linear.outputs_ += rows(part);
  }
  for (const Part& part : parts) {
    if (options.bias) {
      ParamDecl bias{.name = part.name + ".bias",
                     .shape = {part.outputs},
                     .init = Init::kZeros,
                     .decays = false,
                     // All see the whole gradient of the sum.
                     .share = by_inputs ? tensor.replicated(false) : copies_of(part)};
      bias.share.start = {first_row(part)};
      bias.share.extent = {rows(part)};
      const ParamRef ref = blueprint.add_param(std::move(bias));
      linear.bias_ = linear.bias_.index < 0 ? ref : linear.bias_;
    }
  }
  if (options.fp8_tokens) {
    linear.fp8_ = Fp8Linear::declare(
        parts.front().name,
        {.tokens = *options.fp8_tokens, .inputs = linear.inputs_, .outputs = linear.outputs_},
        blueprint);
  }
  return linear;
}

void Linear::forward(const ExecContext& context, ConstTensor x, Tensor y) const {
  if (fp8_) {
    fp8_->forward(context, x, weight(context), bias(context), y);
  } else {
    context.ops.linear_forward(x, weight(context), bias(context), y, context.compute);
  }
}

void Linear::forward_activated(const ExecContext& context,
                               ActivationKind activation,
                               ConstTensor x,
                               Tensor pre,
                               Tensor y) const {
  check(split_ == Split::kOutputs, "an activation of outputs that are yet to be summed over ranks");
  if (fp8_) {
    forward(context, x, pre);
    context.ops.activation_forward(activation, pre, y, context.compute);
  } else {
    context.ops.linear_activation_forward(activation, x, weight(context), bias(context), pre, y,
                                          context.compute);
  }
}

void Linear::backward(const ExecContext& context,
                      ConstTensor dy,
                      ConstTensor x,
                      Tensor dx,
                      const GradTarget& gradients) const {
  if (fp8_) {
    fp8_->backward(context, dy, x, weight(context), dx, d_weight(gradients), gradients.write);
  } else {
    context.ops.linear_backward_input(dy, weight(context), dx, context.compute);
    context.ops.linear_backward_weight(dy, x, d_weight(gradients), gradients.write,
                                       context.compute);
  }
  backward_bias(context, dy, gradients);
}

void Linear::backward_activated(const ExecContext& context,
                                ActivationKind activation,
                                ConstTensor dy,
                                ConstTensor x,
                                ConstTensor pre,
                                Tensor d_pre,
                                const GradTarget& gradients) const {
  check(split_ == Split::kInputs, "the gradient of inputs that is yet to be summed over ranks");
  if (fp8_) {
    backward(context, dy, x, d_pre, gradients);
    context.ops.activation_backward(activation, pre, d_pre, d_pre, context.compute);
    return;
  }
  context.ops.linear_activation_backward(activation, dy, weight(context), pre, d_pre,
                                         context.compute);
  context.ops.linear_backward_weight(dy, x, d_weight(gradients), gradients.write, context.compute);
  backward_bias(context, dy, gradients);
}

Tensor Linear::d_weight(const GradTarget& gradients) const {
  return gradients.params(weight_, num_parts_, {outputs_, inputs_});
}

void Linear::backward_bias(const ExecContext& context,
                           ConstTensor dy,
                           const GradTarget& gradients) const {
  if (bias_.index >= 0) {
    context.ops.linear_backward_bias(dy, gradients.params(bias_, num_parts_, {outputs_}),
                                     gradients.write, context.compute);
  }
}

ConstTensor Linear::weight(const ExecContext& context) const {
  return context.params(weight_, num_parts_, {outputs_, inputs_});
}

ConstTensor Linear::bias(const ExecContext& context) const {
  return bias_.index < 0 || !adds_bias_ ? ConstTensor{}
                                        : context.params(bias_, num_parts_, {outputs_});
}

}  // namespace dstrain
