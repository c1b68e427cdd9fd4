#include "engine/model/linear.h"

namespace dstrain {

Linear Linear::declare(const TensorShape& tensor,
                       std::span<const Part> parts,
                       const Options& options,
                       Blueprint& blueprint) {
  Linear linear;
  linear.num_parts_ = static_cast<int>(parts.size());
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
  return linear;
}

void Linear::forward(const ExecContext& context, ConstTensor x, Tensor y) const {
  const ConstTensor weight = context.params(weight_, num_parts_, {outputs_, inputs_});
  const ConstTensor bias = bias_.index < 0 || !adds_bias_
                               ? ConstTensor{}
                               : context.params(bias_, num_parts_, {outputs_});
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
