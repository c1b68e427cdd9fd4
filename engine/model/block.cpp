#include "engine/model/block.h"

namespace dstrain {

Block Block::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  Block block;
  block.recompute_ = shape.recompute;
  block.attention_norm_ =
      BranchNorm::declare(shape, name + ".attention_norm", Origin::kInput, blueprint);
  block.attention_ = Attention::declare(shape, name + ".attention", blueprint);
  block.mlp_norm_ = BranchNorm::declare(shape, name + ".mlp_norm", Origin::kProduct, blueprint);
  block.mlp_ = Mlp::declare(shape, name + ".mlp", blueprint);
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
  block.mlp_out_ = scratch("mlp_out");
  block.d_norm_ = d_scratch("d_norm");
  if (shape.tensor.sequence_parallel) {
    block.gathered_ = scratch("gathered");
    block.d_gathered_ = d_scratch("d_gathered");
  }
  return block;
}

Block::Flow Block::forward(const LayerContext& context, int slot, const Flow& in) const {
  attention_norm_.begin(context, slot, in.x, in.delta);
  attend(context, slot);
  const ConstTensor delta = feed_forward(context, slot);
  return {mlp_norm_.stream(context, slot), delta};
}

void Block::attend(const LayerContext& context, int slot) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor out =
      attention_norm_.result(context, slot, context.activation(attention_out_, slot));
  attention_.forward(context, slot,
                     tensor.enter(attention_norm_.input(context, slot),
                                  context.optional_buffer(gathered_), context.compute),
                     out);
  mlp_norm_.begin(context, slot, attention_norm_.stream(context, slot),
                  attention_norm_.end(context, slot, out));
}

ConstTensor Block::feed_forward(const LayerContext& context, int slot) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor out = mlp_norm_.result(context, slot, context.activation(mlp_out_, slot));
  mlp_.forward(context, slot,
               tensor.enter(mlp_norm_.input(context, slot), context.optional_buffer(gathered_),
                            context.compute),
               out);
  return mlp_norm_.end(context, slot, out);
}

void Block::recompute(const LayerContext& context, int slot) const {
  switch (recompute_) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective:
      attention_norm_.renew(context, slot);
      mlp_norm_.renew(context, slot);
      mlp_.activate(context, slot);
      break;
    case RecomputeGranularity::kFull:
      attention_norm_.begin(context, slot, attention_norm_.stream(context, slot), {});
      attend(context, slot);
      if (mlp_norm_.reads_result()) {
        static_cast<void>(feed_forward(context, slot));
      } else {
        // Not the product after it: what the block hands on, no backward reads.
        mlp_.expand(
            context, slot,
            context.tensor_parallel.enter(mlp_norm_.input(context, slot),
                                          context.optional_buffer(gathered_), context.compute));
      }
      break;
  }
}

void Block::backward(const LayerContext& context,
                     int slot,
                     Tensor d_residual,
                     const GradTarget& gradients) const {
  recompute(context, slot);
  const TensorParallel& tensor = context.tensor_parallel;
  Stream& compute = context.compute;
  const Tensor d_norm = context.buffer(d_norm_);
  const auto back_through = [&](const BranchNorm& norm, const auto& branch) {
    const ConstTensor d_result = norm.end_backward(context, slot, d_residual, gradients);
    branch.backward(
        context, slot,
        tensor.leave_backward(d_result, context.optional_buffer(d_gathered_), compute),
        tensor.enter(norm.input(context, slot), context.optional_buffer(gathered_), compute),
        d_norm, gradients);
    norm.begin_backward(context, slot, tensor.enter_backward(d_norm, compute), d_residual,
                        gradients);
  };
  back_through(mlp_norm_, mlp_);
  back_through(attention_norm_, attention_);
}

}  // namespace dstrain
