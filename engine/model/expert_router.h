// ExpertRouter: which experts each token of a micro-batch goes through, and the losses that keep
// them busy (kernels/math/router.h, engine/config/arch/experts_spec.h).
//
//   logits = x · routerᵀ                            [N, E], f32
//   chosen, weights = the k best of each token      [N, k]
//   counts = the tokens that chose each expert, by sequence
//
// Counts are constants in the auxiliary loss, and of whole sequences: ranks that share these sum
// theirs in backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/linear.h"
#include "engine/plan/traffic_plan.h"
#include "kernels/routing.h"

namespace dstrain {

class ExpertRouter {
 public:
  static ExpertRouter declare(const LayerShape& shape,
                              const std::string& name,
                              Blueprint& blueprint);

  /// Computes chosen(), weights() and counts().
  void forward(const LayerContext& context, int slot, ConstTensor x_NC) const;
  [[nodiscard]] Tensor chosen(const LayerContext& context, int slot) const {  ///< i32 [N, k]
    return context.activation(chosen_, slot);
  }
  [[nodiscard]] Tensor weights(const LayerContext& context, int slot) const {  ///< f32 [N, k]
    return context.activation(weights_, slot);
  }
  /// i32 [B, E], by chunk of sequences, or piece of one.
  [[nodiscard]] Tensor counts(const LayerContext& context, int slot) const {
    return context.buffer(counts_, slot);
  }
  /// Counts the choices of some of the tokens, as if these were one sequence: i32 [1, E].
  void count(const LayerContext& context, int slot, const Range& tokens, Tensor counts) const;

  /// f32 [N, k], the gradients of weights(), which the caller fills.
  [[nodiscard]] Tensor d_weights(const LayerContext& context) const {
    return context.buffer(d_weights_);
  }
  // The calls of backward, to be made in this order, once d_weights() is filled:
  /// Sums counts over the ranks that share sequences, where a loss asks for it.
  void begin_backward(const LayerContext& context, int slot) const;
  /// Computes dx (overwritten) and the router's gradients from d_weights() and the losses.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor x_NC,
                Tensor dx_NC,
                const GradTarget& gradients) const;
  /// Adds the losses of its own to losses(), where there are any.
  void measure(const LayerContext& context, int slot) const;

  /// f64 [2], over the step's micro-batches: the auxiliary losses of their sequences, and the
  /// squares of logsumexp of their tokens. Empty where neither joins the loss.
  [[nodiscard]] Tensor losses(const LayerContext& context) const {
    return context.optional_buffer(losses_);
  }
  /// The sums of begin_backward(), as they are planned.
  [[nodiscard]] std::vector<ExpertTransfer> traffic() const;

 private:
  /// Says how sequences lie in this rank's rows, and how they are counted.
  void divide_sequences(const LayerShape& shape);
  /// Whether the auxiliary loss needs counts of other ranks' tokens.
  [[nodiscard]] bool sums_counts() const { return ranks_counts_.index >= 0; }
  /// Counts of whole sequences, after begin_backward().
  [[nodiscard]] ConstTensor counts_of_all(const LayerContext& context, int slot) const {
    return context.buffer(sums_counts() ? ranks_counts_ : counts_, sums_counts() ? 0 : slot);
  }
  /// How sequences lie in them; where no loss asks, as if each of a rank's pieces were one.
  [[nodiscard]] SequenceChunks sequences_of_all() const {
    return sums_counts() ? sequences_ : SequenceChunks{};
  }

  std::int64_t experts_ = 0;
  RouterRule rule_;
  SequenceChunks sequences_;
  ContextShape context_;
  std::int64_t pieces_ = 1;     // B of counts
  float balance_scale_ = 0.0F;  // of a sequence's loss, over that of a token; 0: another rank's
  float z_scale_ = 0.0F;        // likewise, of a token
  Linear router_;
  BufferRef balancing_bias_;  // f32 [E]; none where scores alone choose
  // For backward:
  BufferRef logits_;     // f32 [N, E]
  BufferRef logsumexp_;  // f32 [N]
  BufferRef chosen_;     // i32 [N, k]
  BufferRef weights_;    // f32 [N, k]
  BufferRef counts_;     // i32 [B, E]
  BufferRef losses_;     // f64 [2], of the step: Σ of the auxiliary loss, Σ of logsumexp²
  // Scratch of backward:
  BufferRef d_weights_;  // f32 [N, k]
  BufferRef d_logits_;   // [N, E]
  BufferRef balance_;    // f32 [B, E]
  // i32 [B, E], of the pieces of all tensor-parallel ranks; where ranks share sequences and a loss
  // asks for it
  BufferRef ranks_counts_;
};

}  // namespace dstrain
