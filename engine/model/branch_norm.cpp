#include "engine/model/branch_norm.h"

namespace dstrain {

BranchNorm BranchNorm::declare(const LayerShape& shape,
                               const std::string& name,
                               Origin stream,
                               Blueprint& blueprint) {
  BranchNorm norm;
  norm.after_ = shape.layer.norm_placement == NormPlacement::kAfterBranch;
  if (!norm.after_) {
    norm.norm_ =
        Norm::declare(shape, shape.layer.norm, name, stream, Norm::Output::kKept, blueprint);
    return norm;
  }
  const Shape extent{shape.stream_tokens(), shape.model.hidden_size};
  norm.stream_ = shape.add_activation(blueprint, name, "stream", extent, shape.compute, stream,
                                      LayerKind::kNorm);
  norm.norm_ = Norm::declare(shape, shape.layer.norm, name, Origin::kProduct,
                             Norm::Output::kPassedOn, blueprint);
  norm.d_result_ = shape.add_backward_buffer(
      blueprint, {"d_result", extent, shape.compute, Lifetime::kScratch, LayerKind::kNorm});
  return norm;
}

Tensor BranchNorm::stream(const LayerContext& context, int slot) const {
  return after_ ? context.activation(stream_, slot) : norm_.residual(context, slot);
}

void BranchNorm::begin(const LayerContext& context,
                       int slot,
                       ConstTensor x,
                       ConstTensor delta) const {
  if (!after_) {
    norm_.forward(context, slot, x, delta);
    return;
  }
  const Tensor kept = stream(context, slot);
  check(!delta.empty() || x.data() == kept.data(), "without a delta, x is the stream itself");
  if (!delta.empty()) {
    context.ops.add(x, delta, kept, context.compute);
  }
}

ConstTensor BranchNorm::input(const LayerContext& context, int slot) const {
  return after_ ? stream(context, slot) : norm_.output(context, slot);
}

Tensor BranchNorm::result(const LayerContext& context, int slot, Tensor scratch) const {
  const bool in_place = after_ && !context.tensor_parallel.splits_tokens();
  return in_place ? norm_.residual(context, slot) : scratch;
}

ConstTensor BranchNorm::end(const LayerContext& context, int slot, Tensor result) const {
  if (!after_) {
    return context.tensor_parallel.leave(result, context.compute);
  }
  const Tensor whole = norm_.residual(context, slot);
  context.tensor_parallel.leave_into(result, whole, context.compute);
  norm_.forward(context, slot, whole, {});
  return norm_.output(context, slot);
}

ConstTensor BranchNorm::delta(const LayerContext& context, int slot, Tensor result) const {
  return after_ ? norm_.output(context, slot) : result;
}

void BranchNorm::renew(const LayerContext& context, int slot) const {
  norm_.forward(context, slot, norm_.residual(context, slot), {});
}

ConstTensor BranchNorm::end_backward(const LayerContext& context,
                                     int slot,
                                     Tensor d_stream,
                                     const GradTarget& gradients) const {
  if (!after_) {
    return d_stream;  // the gradient of a sum is that of what was added to it
  }
  const Tensor d_result = context.buffer(d_result_);
  norm_.backward(context, slot, d_stream, d_result, Write::kOverwrite, gradients);
  return d_result;
}

void BranchNorm::begin_backward(const LayerContext& context,
                                int slot,
                                ConstTensor d_input,
                                Tensor d_stream,
                                const GradTarget& gradients) const {
  if (after_) {
    context.ops.add(d_stream, d_input, d_stream, context.compute);
  } else {
    norm_.backward(context, slot, d_input, d_stream, Write::kAdd, gradients);
  }
}

}  // namespace dstrain
