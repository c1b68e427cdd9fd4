#include "engine/model/block.h"

namespace dstrain {

Block Block::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  Block block;
  block.recompute_ = shape.recompute;
  block.attention_norm_ = Norm::declare(shape, name + ".attention_norm", Origin::kInput, blueprint);
  block.attention_ = Attention::declare(shape, name + ".attention", blueprint);
  block.mlp_norm_ = Norm::declare(shape, name + ".mlp_norm", Origin::kProduct, blueprint);
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
  const TensorParallel& tensor = context.tensor_parallel;
  Stream& compute = context.compute;
  const Tensor gathered = context.optional_buffer(gathered_);

  attention_norm_.forward(context, slot, in.x, in.delta);
  attend(context, slot);
  const Tensor mlp_out = context.activation(mlp_out_, slot);
  mlp_.forward(context, slot, tensor.enter(mlp_norm_.output(context, slot), gathered, compute),
               mlp_out);
  return {mlp_norm_.residual(context, slot), tensor.leave(mlp_out, compute)};
}

void Block::attend(const LayerContext& context, int slot) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor attention_out = context.activation(attention_out_, slot);
  attention_.forward(context, slot,
                     tensor.enter(attention_norm_.output(context, slot),
                                  context.optional_buffer(gathered_), context.compute),
                     attention_out);
  mlp_norm_.forward(context, slot, attention_norm_.residual(context, slot),
                    tensor.leave(attention_out, context.compute));
}

void Block::recompute(const LayerContext& context, int slot) const {
  const auto from_residual = [&](const Norm& norm) {
    norm.forward(context, slot, norm.residual(context, slot), {});
  };
  switch (recompute_) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective:
      from_residual(attention_norm_);
      from_residual(mlp_norm_);
      mlp_.activate(context, slot);
      break;
    case RecomputeGranularity::kFull:
      from_residual(attention_norm_);
      attend(context, slot);
      // Not the product after it: what the block hands on, no backward reads.
      mlp_.expand(
          context, slot,
          context.tensor_parallel.enter(mlp_norm_.output(context, slot),
                                        context.optional_buffer(gathered_), context.compute));
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
  const Tensor gathered = context.optional_buffer(gathered_);
  const Tensor d_gathered = context.optional_buffer(d_gathered_);

  // The residual stream's gradient is also the gradient of what was added to it.
  mlp_.backward(context, slot, tensor.leave_backward(d_residual, d_gathered, compute),
                tensor.enter(mlp_norm_.output(context, slot), gathered, compute), d_norm,
                gradients);
  mlp_norm_.backward(context, slot, tensor.enter_backward(d_norm, compute), d_residual, Write::kAdd,
                     gradients);

  attention_.backward(context, slot, tensor.leave_backward(d_residual, d_gathered, compute),
                      tensor.enter(attention_norm_.output(context, slot), gathered, compute),
                      d_norm, gradients);
  attention_norm_.backward(context, slot, tensor.enter_backward(d_norm, compute), d_residual,
                           Write::kAdd, gradients);
}

}  // namespace dstrain
