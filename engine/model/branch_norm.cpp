#include "engine/model/branch_norm.h"

#include <utility>

namespace dstrain {

BranchNorm BranchNorm::declare(const LayerShape& shape,
                               const std::string& name,
                               Origin stream,
                               DropoutSite branch,
                               Blueprint& blueprint) {
  const NormPlacement placement = shape.layer.norm_placement;
  const NormSpec& spec = shape.layer.norm;
  const Shape extent{shape.stream_tokens(), shape.model.hidden_size};
  BranchNorm norm;
  norm.has_before_ = placement != NormPlacement::kAfterBranch;
  norm.has_after_ = placement != NormPlacement::kBeforeBranch;
  norm.dropout_ = StreamDropout(shape, branch, shape.dropout.residual);
  check(!norm.dropout_.drops() || !norm.has_after_, "dropout before a norm");
  if (norm.has_before_) {
    norm.before_ =
        Norm::declare(shape, spec, name + "_norm", stream, Norm::Output::kKept, blueprint);
  } else {
    norm.stream_ = shape.add_activation(blueprint, name + "_norm", "stream", extent, shape.compute,
                                        stream, LayerKind::kNorm);
  }
  if (norm.has_after_) {
    norm.after_ = Norm::declare(
        shape, spec, name + (norm.has_before_ ? "_result_norm" : "_norm"), Origin::kProduct,
        branch == DropoutSite::kMlpBranch ? Norm::Output::kHandedOn : Norm::Output::kPassedOn,
        blueprint);
  }
  if (norm.has_after_ || norm.dropout_.drops()) {
    norm.d_result_ = shape.add_backward_buffer(
        blueprint, {"d_result", extent, shape.compute, Lifetime::kScratch, LayerKind::kNorm});
  }
  return norm;
}

BranchNorm BranchNorm::declare_beside(const BranchNorm& other,
                                      const LayerShape& shape,
                                      const std::string& name,
                                      Blueprint& blueprint) {
  check(shape.layer.norm_placement == NormPlacement::kBeforeBranch,
        "branches side by side with norms behind them");
  check(!other.dropout_.drops(), "dropout of branches that are summed before it");
  BranchNorm norm;
  norm.before_ =
      Norm::declare_beside(other.before_, shape, shape.layer.norm, name + "_norm", blueprint);
  return norm;
}

Tensor BranchNorm::stream(const LayerContext& context, int slot) const {
  return has_before_ ? before_.residual(context, slot) : context.activation(stream_, slot);
}

void BranchNorm::begin(const LayerContext& context,
                       int slot,
                       ConstTensor x,
                       ConstTensor delta) const {
  if (has_before_) {
    before_.forward(context, slot, x, delta);
    return;
  }
  const Tensor kept = stream(context, slot);
  check(!delta.empty() || x.data() == kept.data(), "without a delta, x is the stream itself");
  if (!delta.empty()) {
    context.ops.add(x, delta, kept, context.compute);
  }
}

ConstTensor BranchNorm::input(const LayerContext& context, int slot) const {
  return has_before_ ? before_.output(context, slot) : stream(context, slot);
}

Tensor BranchNorm::result(const LayerContext& context, int slot, Tensor scratch) const {
  const bool in_place = has_after_ && (own_tokens_ || !context.tensor_parallel.splits_tokens());
  return in_place ? after_.residual(context, slot) : scratch;
}

ConstTensor BranchNorm::end(const LayerContext& context, int slot, Tensor result) const {
  if (!has_after_) {
    const Tensor whole =
        own_tokens_ ? result : context.tensor_parallel.leave(result, context.compute);
    if (dropout_.drops()) {
      dropout_.apply(context, slot, whole, whole);
    }
    return whole;
  }
  const Tensor whole = after_.residual(context, slot);
  if (!own_tokens_) {
    context.tensor_parallel.leave_into(result, whole, context.compute);
  }
  after_.forward(context, slot, whole, {});
  return after_.output(context, slot);
}

ConstTensor BranchNorm::delta(const LayerContext& context, int slot, Tensor result) const {
  return has_after_ ? after_.output(context, slot) : result;
}

void BranchNorm::renew(const LayerContext& context, int slot) const {
  for (const auto& [has_it, norm] : {std::pair(has_before_, &before_), {has_after_, &after_}}) {
    if (has_it) {
      norm->forward(context, slot, norm->residual(context, slot), {});
    }
  }
}

ConstTensor BranchNorm::end_backward(const LayerContext& context,
                                     int slot,
                                     Tensor d_stream,
                                     const GradTarget& gradients) const {
  if (!has_after_ && !dropout_.drops()) {
    return d_stream;  // the gradient of a sum is that of what was added to it
  }
  const Tensor d_result = context.buffer(d_result_);
  if (!has_after_) {
    dropout_.apply(context, slot, d_stream, d_result);
    return d_result;
  }
  after_.backward(context, slot, d_stream, d_result, Write::kOverwrite, gradients);
  return d_result;
}

void BranchNorm::begin_backward(const LayerContext& context,
                                int slot,
                                ConstTensor d_input,
                                Tensor d_stream,
                                const GradTarget& gradients) const {
  if (has_before_) {
    before_.backward(context, slot, d_input, d_stream, Write::kAdd, gradients);
  } else {
    context.ops.add(d_stream, d_input, d_stream, context.compute);
  }
}

}  // namespace dstrain
