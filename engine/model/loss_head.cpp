#include "engine/model/loss_head.h"

#include <algorithm>

namespace dstrain {

LossHead LossHead::declare(const LayerShape& shape,
                           ParamRef embedding_table,
                           Blueprint& blueprint) {
  const ModelSpec& model = shape.model;
  const std::int64_t tokens = shape.tokens();
  LossHead head;
  head.tokens_ = tokens;
  head.vocab_size_ = model.vocab_size;
  head.tied_ = model.tied_embeddings;
  head.norm_ = Norm::declare(shape, "final_norm", Origin::kInput, blueprint);
  head.weight_ = head.tied_ ? embedding_table
                            : blueprint.add_param({.name = "head.weight",
                                                   .shape = {model.vocab_size, model.hidden_size},
                                                   .deviation = model.initializer_range});
  // Chunks of even size: each one reads the whole weight and adds to its whole gradient.
  const std::int64_t most = std::clamp<std::int64_t>(
      kMaxChunkBytes / (model.vocab_size * size_of(shape.compute)), 1, tokens);
  const std::int64_t chunks = (tokens + most - 1) / most;
  head.chunk_tokens_ = (tokens + chunks - 1) / chunks;
  head.logits_ = blueprint.add_buffer(
      {"logits", {head.chunk_tokens_, model.vocab_size}, shape.compute, Lifetime::kScratch});
  head.losses_ = blueprint.add_buffer({"losses", {tokens}, DType::kF32, Lifetime::kScratch});
  head.d_norm_ = blueprint.add_buffer(
      {"d_norm", {tokens, model.hidden_size}, shape.compute, Lifetime::kScratch});
  head.loss_sum_ = blueprint.add_buffer({"loss_sum", {1}, DType::kF64, Lifetime::kScratch});
  return head;
}

void LossHead::forward(const ExecContext& context,
                       int slot,
                       ConstTensor residual_NC,
                       ConstTensor delta_NC) const {
  norm_.forward(context, slot, residual_NC, delta_NC);
}

void LossHead::evaluate(const ExecContext& context,
                        int slot,
                        ConstTensor targets_N,
                        Write loss_write) const {
  const ConstTensor hidden = norm_.output(context, slot);
  const ConstTensor weight = context.param(weight_);
  const Tensor losses = context.buffer(losses_);
  for (std::int64_t begin = 0; begin < tokens_; begin += chunk_tokens_) {
    const std::int64_t end = std::min(begin + chunk_tokens_, tokens_);
    const Tensor logits = context.buffer(logits_).rows(0, end - begin);
    context.ops.linear_forward(hidden.rows(begin, end), weight, {}, logits, context.compute);
    context.ops.cross_entropy_forward(logits, targets_N.flat(begin, end), vocab_size_,
                                      losses.flat(begin, end), context.compute);
  }
  context.ops.sum(losses, loss_sum(context), loss_write, context.compute);
}

void LossHead::backward(const ExecContext& context,
                        int slot,
                        ConstTensor targets_N,
                        float gradient_scale,
                        Write loss_write,
                        Tensor d_residual_NC,
                        const GradTarget& head_gradients,
                        const GradTarget& embedding_gradients) const {
  const ConstTensor hidden = norm_.output(context, slot);
  const ConstTensor weight = context.param(weight_);
  const GradTarget& weight_target = tied_ ? embedding_gradients : head_gradients;
  const Tensor d_weight = weight_target.param(weight_);
  const Tensor losses = context.buffer(losses_);
  const Tensor d_norm = context.buffer(d_norm_);
  for (std::int64_t begin = 0; begin < tokens_; begin += chunk_tokens_) {
    const std::int64_t end = std::min(begin + chunk_tokens_, tokens_);
    const Tensor logits = context.buffer(logits_).rows(0, end - begin);
    context.ops.linear_forward(hidden.rows(begin, end), weight, {}, logits, context.compute);
    context.ops.cross_entropy_forward_backward(logits, targets_N.flat(begin, end), vocab_size_,
                                               gradient_scale, losses.flat(begin, end),
                                               context.compute);
    context.ops.linear_backward_input(logits, weight, d_norm.rows(begin, end), context.compute);
    context.ops.linear_backward_weight(logits, hidden.rows(begin, end), d_weight,
                                       begin == 0 ? weight_target.write : Write::kAdd,
                                       context.compute);
  }
  context.ops.sum(losses, loss_sum(context), loss_write, context.compute);
  norm_.backward(context, slot, d_norm, d_residual_NC, Write::kOverwrite, head_gradients);
}

}  // namespace dstrain
