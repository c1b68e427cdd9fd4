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
  linear.low_rank_ = LowRank::declare(shape, names, outputs, blueprint);
  if (linear.low_rank_) {
    linear.magnitudes_ = RowMagnitudes::declare(shape, names, outputs, linear.sums_, blueprint);
    linear.dropout_ =
        InputDropout(shape, names.front(), blueprint.param(linear.weight_).box_start()[1]);
  }
  if (linear.dropout_.drops()) {
    const auto scratch = [&](const char* name) {
      return BufferDecl{name, {shape.tokens(), linear.inputs_}, shape.compute, Lifetime::kScratch};
    };
    linear.dropped_ = blueprint.add_buffer(scratch("low_rank/dropped"));
    linear.d_dropped_ = shape.add_backward_buffer(blueprint, scratch("low_rank/d_dropped"));
  }
  linear.adds_bias_ = !linear.sums_ || shape.tensor.rank == 0;
  if (const auto tokens = shape.fp8_tokens()) {
    linear.fp8_ = Fp8Linear::declare(
        names.front(), {.tokens = *tokens, .inputs = linear.inputs_, .outputs = linear.outputs_},
        blueprint);
  }
  return linear;
}

void Linear::multiply(const ExecContext& context,
                      ConstTensor x,
                      ConstTensor weight,
                      ConstTensor bias,
                      Tensor y) const {
  if (fp8_) {
    fp8_->forward(context, x, weight, bias, y);
  } else {
    context.ops.linear_forward(x, weight, bias, y, context.compute);
  }
}

ConstTensor Linear::read_by_adapters(const LayerContext& context, int slot, ConstTensor x) const {
  if (!dropout_.drops()) return x;
  const Tensor dropped =
      context.buffer(dropped_).flat(0, x.dim(0) * inputs_).view({x.dim(0), inputs_});
  dropout_.apply(context, slot, x, dropped);
  return dropped;
}

Tensor Linear::make_directions(const LayerContext& context,
                               int slot,
                               ConstTensor read,
                               ConstTensor weight) const {
  const Tensor directions = magnitudes_->directions(context, slot, read.dim(0));
  multiply(context, read, weight, {}, directions);
  low_rank_->forward(context, read, directions);
  return directions;
}

// With magnitudes and dropout, y = (x - read) · weightᵀ + bias + d · m / ‖V‖: as PEFT has it, what
// the adapters' dropout removes goes through the weight as it is.
void Linear::forward(const LayerContext& context, int slot, ConstTensor x, Tensor y) const {
  const ConstTensor weight_OI = weight(context);
  const bool adapts = low_rank_ && !context.without_adapters;
  if (!magnitudes_ || !adapts) multiply(context, x, weight_OI, bias(context), y);
  if (!adapts) return;
  const ConstTensor read = read_by_adapters(context, slot, x);
  if (!magnitudes_) return low_rank_->forward(context, read, y);
  make_directions(context, slot, read, weight_OI);
  const Tensor squares = magnitudes_->squares(context, slot);
  context.ops.group_squares(weight_OI, inputs_, squares, context.compute);
  low_rank_->add_squares(context, weight_OI, squares);
  magnitudes_->sum_over_ranks(context, squares);
  if (!dropout_.drops()) {
    return magnitudes_->forward(context, slot, bias(context), y, Write::kOverwrite);
  }
  const Tensor rest = context.buffer(dropped_).flat(0, x.numel()).view(x.shape());
  context.ops.add_scaled(rest, -1.0F, rest, Write::kOverwrite, context.compute);
  context.ops.add(rest, x, rest, context.compute);
  multiply(context, rest, weight_OI, bias(context), y);
  magnitudes_->forward(context, slot, {}, y, Write::kAdd);
}

void Linear::forward_activated(const LayerContext& context,
                               int slot,
                               ActivationKind activation,
                               ConstTensor x,
                               Tensor pre,
                               Tensor y) const {
  check(!sums_, "an activation of outputs that are yet to be summed over ranks");
  if (fp8_ || low_rank_) {
    forward(context, slot, x, pre);
    context.ops.activation_forward(activation, pre, y, context.compute);
  } else {
    context.ops.linear_activation_forward(activation, x, weight(context), bias(context), pre, y,
                                          context.compute);
  }
}

void Linear::renew(const LayerContext& context, int slot, ConstTensor x) const {
  if (magnitudes_) {
    make_directions(context, slot, read_by_adapters(context, slot, x), weight(context));
  }
}

void Linear::backward_multiply(const ExecContext& context,
                               ConstTensor dy,
                               ConstTensor x,
                               ConstTensor weight,
                               Tensor dx,
                               const GradTarget& gradients) const {
  if (fp8_) {
    fp8_->backward(context, dy, x, weight, dx, d_weight(gradients), gradients.write);
  } else {
    context.ops.linear_backward_input(dy, weight, dx, context.compute);
    backward_weight(context, dy, x, gradients);
  }
}

void Linear::backward(const LayerContext& context,
                      int slot,
                      ConstTensor dy,
                      ConstTensor x,
                      Tensor dx,
                      const GradTarget& gradients) const {
  const ConstTensor weight_OI = weight(context);
  backward_bias(context, dy, gradients);
  const ConstTensor of_adapters =
      magnitudes_ ? magnitudes_->backward(context, slot, dy, gradients) : dy;
  if (!dropout_.drops()) {
    backward_multiply(context, of_adapters, x, weight_OI, dx, gradients);
    if (low_rank_) low_rank_->backward(context, of_adapters, x, dx, gradients);
    return;
  }
  const ConstTensor read = read_by_adapters(context, slot, x);
  const Tensor d_read = context.buffer(d_dropped_).flat(0, x.numel()).view(x.shape());
  backward_multiply(context, dy, x, weight_OI, dx, gradients);
  if (magnitudes_) {
    context.ops.linear_backward_input(of_adapters, weight_OI, d_read, context.compute);
    context.ops.add_scaled(dx, -1.0F, d_read, Write::kAdd, context.compute);
  } else {
    context.ops.zero(d_read, context.compute);
  }
  low_rank_->backward(context, of_adapters, read, d_read, gradients);
  dropout_.apply(context, slot, d_read, d_read);
  context.ops.add(dx, d_read, dx, context.compute);
}

void Linear::backward_activated(const LayerContext& context,
                                int slot,
                                ActivationKind activation,
                                ConstTensor dy,
                                ConstTensor x,
                                ConstTensor pre,
                                Tensor d_pre,
                                const GradTarget& gradients) const {
  check(sums_, "the gradient of inputs that is yet to be summed over ranks");
  if (fp8_ || low_rank_) {
    backward(context, slot, dy, x, d_pre, gradients);
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
    const auto decode = [&](const auto& code, auto operation) {
      (context.ops.*operation)(code, context.coded(part), decoded.rows(row, row + code.rows),
                               context.compute);
      row += code.rows;
    };
    const WeightCode& code = *context.blueprint.param(part).code;
    if (const auto* const in_4_bits = std::get_if<Nf4Code>(&code)) {
      decode(*in_4_bits, &Ops::decode_nf4);
    } else {
      decode(std::get<Int8Code>(code), &Ops::decode_int8);
    }
  }
  return decoded;
}

ConstTensor Linear::bias(const ExecContext& context) const {
  return bias_.index < 0 || !adds_bias_ ? ConstTensor{}
                                        : context.params(bias_, num_parts_, {outputs_});
}

}  // namespace dstrain
