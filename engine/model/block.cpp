#include "engine/model/block.h"

namespace dstrain {

Block Block::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  Block block;
  block.recompute_ = shape.recompute;
  block.parallel_ = shape.layer.parallel_branches;
  block.attention_norm_ = BranchNorm::declare(shape, name + ".attention", Origin::kInput,
                                              DropoutSite::kAttentionBranch, blueprint);
  block.kept_input_ = KeptInput::declare(shape, name, blueprint);
  if (shape.together && shape.keeps_input_apart()) {
    block.waits_before_ = shape.handed_on;
    if (block.parallel_) block.waits_behind_ = shape.handed_on_stream;
  }
  block.attention_ = Attention::declare(shape, name + ".attention", blueprint);
  block.mlp_norm_ = block.parallel_ ? BranchNorm::declare_beside(block.attention_norm_, shape,
                                                                 name + ".mlp", blueprint)
                                    : BranchNorm::declare(shape, name + ".mlp", Origin::kHandedOn,
                                                          DropoutSite::kMlpBranch, blueprint);
  if (shape.layer.feed_forward.experts) {
    block.own_tokens_ = shape.experts.own_tokens;
    check(!block.own_tokens_ || !block.parallel_, "halves side by side of other tokens");
    if (block.own_tokens_) {
      block.mlp_norm_.set_own_tokens();
    }
    block.mlp_ = Experts::declare(block.own_tokens_ ? shape.of_own_tokens() : shape, name + ".mlp",
                                  blueprint);
  } else {
    block.mlp_ = Mlp::declare(shape, name + ".mlp", blueprint);
  }
  const auto scratch = [&](const char* what) {
    return blueprint.add_buffer(
        {what, {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  };
  const auto d_scratch = [&](const char* what) {
    return shape.add_backward_buffer(
        blueprint,
        {what, {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  };
  block.attention_out_ = scratch("attention_out");
  const BufferDecl mlp_out{
      "mlp_out", {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch};
  block.mlp_out_ = block.mlp_norm_.reads_result() ? blueprint.add_buffer(mlp_out)
                                                  : shape.add_handed_on(blueprint, mlp_out);
  block.d_norm_ = d_scratch("d_norm");
  if (block.parallel_) {
    block.d_mlp_norm_ = d_scratch("d_mlp_norm");
  }
  if (shape.tensor.sequence_parallel) {
    block.gathered_ = scratch("gathered");
    block.d_gathered_ = d_scratch("d_gathered");
  }
  return block;
}

Tensor Block::input(const LayerContext& context, int slot) const {
  const Tensor stream = attention_norm_.stream(context, slot);
  return waits_before_.index < 0 ? stream
                                 : context.buffer(waits_before_, slot).rows(0, stream.shape()[0]);
}

Tensor Block::handed_on_stream(const LayerContext& context, int slot) const {
  return waits_behind_.index < 0 ? mlp_norm_.stream(context, slot)
                                 : context.buffer(waits_behind_, slot);
}

Block::Flow Block::forward(const LayerContext& context, int slot, const Flow& in) const {
  const Tensor stream = attention_norm_.stream(context, slot);
  const auto copy_unless_there = [&](ConstTensor from, Tensor to) {
    if (from.data() != to.data()) context.device.copy(from, to, context.compute);
  };
  if (in.delta.empty()) copy_unless_there(in.x, stream);
  attention_norm_.begin(context, slot, in.delta.empty() ? stream : in.x, in.delta);
  kept_input_.keep(context, slot, stream);
  attend(context, slot);
  const ConstTensor delta = feed_forward(context, slot);
  const Tensor handed_on = handed_on_stream(context, slot);
  copy_unless_there(mlp_norm_.stream(context, slot), handed_on);
  return {handed_on, delta};
}

void Block::attend(const LayerContext& context, int slot) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor out =
      attention_norm_.result(context, slot, context.activation(attention_out_, slot));
  attention_.forward(context, slot,
                     tensor.enter(attention_norm_.input(context, slot),
                                  context.optional_buffer(gathered_), context.compute),
                     out);
  if (parallel_) {
    mlp_norm_.renew(context, slot);  // of the stream that attention's has filled
    return;
  }
  mlp_norm_.begin(context, slot, attention_norm_.stream(context, slot),
                  attention_norm_.end(context, slot, out));
}

ConstTensor Block::enter_feed_forward(const LayerContext& context, int slot) const {
  const ConstTensor in = mlp_norm_.input(context, slot);
  return own_tokens_ ? in
                     : context.tensor_parallel.enter(in, context.optional_buffer(gathered_),
                                                     context.compute);
}

ConstTensor Block::feed_forward(const LayerContext& context, int slot) const {
  const ConstTensor in = enter_feed_forward(context, slot);
  const Tensor place = context.activation(mlp_out_, slot).rows(0, in.dim(0));
  const Tensor out = mlp_norm_.result(context, slot, place);
  std::visit([&](const auto& mlp) { mlp.forward(context, slot, in, out); }, mlp_);
  if (parallel_) {  // what ranks have parts of is then summed over them once
    context.ops.add(out, context.activation(attention_out_, slot), out, context.compute);
  }
  return mlp_norm_.end(context, slot, out);
}

void Block::recompute(const LayerContext& context, int slot) const {
  kept_input_.restore(context, slot, attention_norm_.stream(context, slot));
  switch (recompute_) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective:
      attention_norm_.renew(context, slot);
      mlp_norm_.renew(context, slot);
      std::visit([&](const auto& mlp) { mlp.activate(context, slot); }, mlp_);
      break;
    case RecomputeGranularity::kFull:
      attention_norm_.begin(context, slot, attention_norm_.stream(context, slot), {});
      attend(context, slot);
      if (mlp_norm_.reads_result()) {
        static_cast<void>(feed_forward(context, slot));
      } else {
        // The product after it is not computed: no backward reads the block's output.
        const ConstTensor in = enter_feed_forward(context, slot);
        std::visit([&](const auto& mlp) { mlp.expand(context, slot, in); }, mlp_);
      }
      break;
  }
}

void Block::backward(const LayerContext& context,
                     int slot,
                     Tensor d_residual,
                     const BlockGradients& gradients) const {
  recompute(context, slot);
  if (parallel_) {
    backward_beside(context, slot, d_residual, gradients);
    return;
  }
  const TensorParallel& tensor = context.tensor_parallel;
  Stream& compute = context.compute;
  const Tensor d_norm = context.buffer(d_norm_);
  const auto back_through = [&](const BranchNorm& norm, const auto& branch, bool own_tokens) {
    const ConstTensor d_result = norm.end_backward(context, slot, d_residual, gradients);
    if (own_tokens) {
      const ConstTensor in = norm.input(context, slot);
      const Tensor d_in = d_norm.rows(0, in.dim(0));
      branch.backward(context, slot, d_result, in, d_in, gradients);
      norm.begin_backward(context, slot, d_in, d_residual, gradients);
      return;
    }
    branch.backward(
        context, slot,
        tensor.leave_backward(d_result, context.optional_buffer(d_gathered_), compute),
        tensor.enter(norm.input(context, slot), context.optional_buffer(gathered_), compute),
        d_norm, gradients);
    norm.begin_backward(context, slot, tensor.enter_backward(d_norm, compute), d_residual,
                        gradients);
  };
  std::visit([&](const auto& mlp) { back_through(mlp_norm_, mlp, own_tokens_); }, mlp_);
  back_through(attention_norm_, attention_, false);
}

// Both branches read the gradient of their sum before the gradient through either is added to it.
void Block::backward_beside(const LayerContext& context,
                            int slot,
                            Tensor d_residual,
                            const BlockGradients& gradients) const {
  const TensorParallel& tensor = context.tensor_parallel;
  Stream& compute = context.compute;
  const ConstTensor d_sum =
      tensor.leave_backward(d_residual, context.optional_buffer(d_gathered_), compute);
  const auto back_through = [&](const BranchNorm& norm, const auto& branch, Tensor d_norm) {
    branch.backward(
        context, slot, d_sum,
        tensor.enter(norm.input(context, slot), context.optional_buffer(gathered_), compute),
        d_norm, gradients);
    return tensor.enter_backward(d_norm, compute);
  };
  const Tensor d_mlp = std::visit(
      [&](const auto& mlp) { return back_through(mlp_norm_, mlp, context.buffer(d_mlp_norm_)); },
      mlp_);
  const Tensor d_attention = back_through(attention_norm_, attention_, context.buffer(d_norm_));
  mlp_norm_.begin_backward(context, slot, d_mlp, d_residual, gradients);
  attention_norm_.begin_backward(context, slot, d_attention, d_residual, gradients);
}

}  // namespace dstrain
