// Block: one transformer block. The residual stream travels as a pair (x, delta), so that each
// addition is fused with the norm that follows it, across block borders too.
//
//   r1 = x + delta;   a = attention(norm1(r1))
//   r2 = r1 + a;      m = mlp(norm2(r2))          hands on (r2, m)
//
// Where norms stand behind the branches (branch_norm.h), a = norm(attention(…)) and
// m = norm(mlp(…)).
//
// Where the branches stand side by side (GPT-NeoX), both read r1 and their sum is handed on:
//
//   r1 = x + delta;   a = attention(norm1(r1));   m = mlp(norm2(r1))          hands on (r1, a + m)
//
// Backward first computes again what was not kept of this (LayerShape::recompute), with the same
// operations on the same numbers: the same bits. Where it extends a cache (layer_shape.h), forward
// is the same except for attention, and there is nothing to compute again.
#pragma once

#include <string>
#include <variant>

#include "engine/model/attention.h"
#include "engine/model/branch_norm.h"
#include "engine/model/experts.h"
#include "engine/model/kept_input.h"
#include "engine/model/layer_context.h"
#include "engine/model/mlp.h"

namespace dstrain {

class Block {
 public:
  /// The residual stream before an addition, as the next norm computes x + delta.
  struct Flow {
    ConstTensor x;
    ConstTensor delta;
  };

  static Block declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  void prepare(const LayerContext& context) const { attention_.prepare(context); }
  /// Where the first block's input must lie (flow.x without a delta).
  [[nodiscard]] Tensor input(const LayerContext& context, int slot) const;
  [[nodiscard]] Flow forward(const LayerContext& context, int slot, const Flow& in) const;
  /// The tensors that forward hands on where one rank has all of the block.
  [[nodiscard]] Flow output(const LayerContext& context, int slot) const {
    return {handed_on_stream(context, slot),
            mlp_norm_.delta(context, slot, context.activation(mlp_out_, slot))};
  }
  [[nodiscard]] const Attention& attention() const { return attention_; }
  /// nullptr where the feed-forward is dense.
  [[nodiscard]] const Experts* experts() const { return std::get_if<Experts>(&mlp_); }
  /// Starts to bring the input that backward() computes again from, where the host's memory keeps
  /// it: first that of the backward() which comes next, then that of the one after it.
  void bring_input_soon(const LayerContext& context, int slot) const {
    kept_input_.bring_soon(context, slot);
  }
  /// d_residual is the gradient of r2 + m on entry, of x + delta on return.
  void backward(const LayerContext& context,
                int slot,
                Tensor d_residual,
                const BlockGradients& gradients) const;

 private:
  [[nodiscard]] Tensor handed_on_stream(const LayerContext& context, int slot) const;
  /// Computes from what attention reads to what the feed-forward reads.
  void attend(const LayerContext& context, int slot) const;
  /// Returns what the feed-forward reads, gathered from the tensor-parallel ranks unless each of
  /// them computes its own tokens.
  [[nodiscard]] ConstTensor enter_feed_forward(const LayerContext& context, int slot) const;
  /// Computes from there to what the block adds to the stream.
  [[nodiscard]] ConstTensor feed_forward(const LayerContext& context, int slot) const;
  /// The backward() of branches that stand side by side.
  void backward_beside(const LayerContext& context,
                       int slot,
                       Tensor d_residual,
                       const BlockGradients& gradients) const;
  /// Makes everything that backward reads whole again.
  void recompute(const LayerContext& context, int slot) const;

  RecomputeGranularity recompute_ = RecomputeGranularity::kNone;
  bool parallel_ = false;
  bool own_tokens_ = false;  // ExpertShape::own_tokens, where there are experts
  KeptInput kept_input_;
  BranchNorm attention_norm_;
  Attention attention_;
  BranchNorm mlp_norm_;
  std::variant<Mlp, Experts> mlp_;
  // Where micro-batches wait that go through the block together, and the stream that enters it is
  // scratch: in the stage's buffers. What the first block reads does until the block hands on its
  // result in the same place; and where branches stand side by side, so does what enters, which is
  // handed on.
  BufferRef waits_before_;
  BufferRef waits_behind_;
  BufferRef attention_out_;  // scratch [N, C]
  BufferRef mlp_out_;        // [N, C]: scratch, or what is handed on
  BufferRef d_norm_;         // scratch [N, C]
  BufferRef d_mlp_norm_;     // scratch [N, C]; side by side only
  BufferRef gathered_;       // scratch [N, C]: what a half reads; sequence parallelism only
  BufferRef d_gathered_;     // scratch [N, C]: gradient of what a half makes; likewise
};

}  // namespace dstrain
