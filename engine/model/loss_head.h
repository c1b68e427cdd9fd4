// LossHead: final norm, logits, cross-entropy. The logits exist for one chunk of tokens at a time:
// chunk by chunk they are computed, turned into their own gradient in place, and used up by the
// two products of backward (as Liger and llm.q do), so memory does not grow with tokens × V.
#pragma once

#include "engine/model/layer_shape.h"
#include "engine/model/norm.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

class LossHead {
 public:
  /// Logits of a chunk take at most this much; at least one token, at most all of them.
  static constexpr std::int64_t kMaxChunkBytes = std::int64_t{128} << 20;

  /// `embedding_table`: what a tied head multiplies with.
  static LossHead declare(const LayerShape& shape, ParamRef embedding_table, Blueprint& blueprint);

  /// The final norm of residual + delta.
  void forward(const ExecContext& context,
               int slot,
               ConstTensor residual_NC,
               ConstTensor delta_NC) const;
  /// Losses only: loss_sum = or += Σ losses.
  void evaluate(const ExecContext& context,
                int slot,
                ConstTensor targets_N,
                Write loss_write) const;
  /// Losses and gradients: d_residual_NC (overwritten), the head's own, and the tied table's.
  /// Every token's loss counts `gradient_scale` times.
  void backward(const ExecContext& context,
                int slot,
                ConstTensor targets_N,
                float gradient_scale,
                Write loss_write,
                Tensor d_residual_NC,
                const GradTarget& head_gradients,
                const GradTarget& embedding_gradients) const;
  /// f64, one element: the sum of losses in nats.
  [[nodiscard]] Tensor loss_sum(const ExecContext& context) const {
    return context.buffer(loss_sum_);
  }
  [[nodiscard]] bool tied() const { return tied_; }

 private:
  std::int64_t tokens_ = 0;
  std::int64_t chunk_tokens_ = 0;
  std::int64_t vocab_size_ = 0;
  bool tied_ = false;
  Norm norm_;
  ParamRef weight_;   // [V, C]: own, or the embedding's
  BufferRef logits_;  // scratch [chunk, V]
  BufferRef losses_;  // scratch [N]
  BufferRef d_norm_;  // scratch [N, C]
  BufferRef loss_sum_;
};

}  // namespace dstrain
