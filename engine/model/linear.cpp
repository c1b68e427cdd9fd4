#include "engine/model/linear.h"

namespace dstrain {

Linear Linear::declare(const LayerShape& shape,
                       const std::vector<std::string>& names,
                       Blueprint& blueprint) {
  Linear linear;
  linear.num_parts_ = static_cast<int>(names.size());
  std::vector<std::int64_t> outputs;
  for (const std::string& name : names) {
    const TensorDecl& weight = shape.tensor_named(name + ".weight");
    linear.sums_ = weight.cut == Cut::kColumns;
    const ParamRef ref = blueprint.add_param(shape.param(weight));
    linear.weight_ = linear.outputs_ == 0 ? ref : linear.weight_;
    linear.inputs_ = blueprint.param(ref).local_shape()[1];
    outputs.push_back(blueprint.param(ref).local_shape()[0]);
    linear.outputs_ += outputs.back();
  }
  for (const std::string& name : names) {
    if (const TensorDecl* bias = find_tensor(shape.tensors, name + ".bias")) {
      const ParamRef ref = blueprint.add_param(shape.param(*bias));
      linear.bias_ = linear.bias_.index < 0 ? ref : linear.bias_;
    }
  }
  if (blueprint.param(linear.weight_).code) {
    linear.decoded_ = blueprint.add_buffer(
        {"decoded_weight", {linear.outputs_, linear.inputs_}, shape.compute, Lifetime::kScratch});
  }
  linear.low_rank_ = LowRank::declare(shape, names, outputs, linear.inputs_, blueprint);
  linear.adds_bias_ = !linear.sums_ || shape.tensor.rank == 0;
  if (const auto tokens = shape.fp8_tokens()) {
    linear.fp8_ = Fp8Linear::declare(
        names.front(), {.tokens = *tokens, .inputs = linear.inputs_, .outputs = linear.outputs_},
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
  if (low_rank_) low_rank_->forward(context, x, y);
}

void Linear::forward_activated(const ExecContext& context,
                               ActivationKind activation,
                               ConstTensor x,
                               Tensor pre,
                               Tensor y) const {
  check(!sums_, "an activation of outputs that are yet to be summed over ranks");
  if (fp8_ || low_rank_) {
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
    backward_weight(context, dy, x, gradients);
  }
  if (low_rank_) low_rank_->backward(context, dy, x, dx, gradients);
  backward_bias(context, dy, gradients);
}

void Linear::backward_activated(const ExecContext& context,
                                ActivationKind activation,
                                ConstTensor dy,
                                ConstTensor x,
                                ConstTensor pre,
                                Tensor d_pre,
                                const GradTarget& gradients) const {
  check(sums_, "the gradient of inputs that is yet to be summed over ranks");
  if (fp8_ || low_rank_) {
    backward(context, dy, x, d_pre, gradients);
    context.ops.activation_backward(activation, pre, d_pre, d_pre, context.compute);
    return;
  }
  context.ops.linear_activation_backward(activation, dy, weight(context), pre, d_pre,
                                         context.compute);
  backward_weight(context, dy, x, gradients);
  backward_bias(context, dy, gradients);
}

Tensor Linear::d_weight(const GradTarget& gradients) const {
  return gradients.wants(weight_) ? gradients.params(weight_, num_parts_, {outputs_, inputs_})
                                  : Tensor{};
}

void Linear::backward_weight(const ExecContext& context,
                             ConstTensor dy,
                             ConstTensor x,
                             const GradTarget& gradients) const {
  if (const Tensor d_weight_OI = d_weight(gradients); !d_weight_OI.empty()) {
    context.ops.linear_backward_weight(dy, x, d_weight_OI, gradients.write, context.compute);
  }
}

void Linear::backward_bias(const ExecContext& context,
                           ConstTensor dy,
                           const GradTarget& gradients) const {
  if (bias_.index >= 0 && gradients.wants(bias_)) {
    context.ops.linear_backward_bias(dy, gradients.params(bias_, num_parts_, {outputs_}),
                                     gradients.write, context.compute);
  }
}

ConstTensor Linear::weight(const ExecContext& context) const {
  if (decoded_.index < 0) return context.params(weight_, num_parts_, {outputs_, inputs_});
  const Tensor decoded =
      context.buffer(decoded_).flat(0, outputs_ * inputs_).view({outputs_, inputs_});
  std::int64_t row = 0;
  for (int i = 0; i < num_parts_; ++i) {
    const ParamRef part{weight_.unit, weight_.index + i};
    const Nf4Code& code = *context.blueprint.param(part).code;
    context.ops.decode_nf4(code, context.coded(part), decoded.rows(row, row + code.rows),
                           context.compute);
    row += code.rows;
  }
  return decoded;
}

ConstTensor Linear::bias(const ExecContext& context) const {
  return bias_.index < 0 || !adds_bias_ ? ConstTensor{}
                                        : context.params(bias_, num_parts_, {outputs_});
}

}  // namespace dstrain
