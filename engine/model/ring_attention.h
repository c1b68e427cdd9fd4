// RingAttention: attention of this rank's queries over the keys and values of all ranks of its ring
// (Liu et al. 2023, "Ring attention with blockwise transformers"; zigzag order: token_share.h).
//
//   step 0           my queries see my keys
//   step s = 1 …     those of rank r - s, which arrive while step s - 1 computes; rank r sends its
//                    own to rank r + s: each rank just what it sees, so late keys do not travel to
//                    early queries, nor beyond a window
//   results          parts are merged by their log-sum-exps, in f32, in the order of the steps
//   backward         the same once more; what step s adds to the gradients of another's keys goes
//                    back to it while step s + 1 computes, and is added in f32 in that order
//
// What travels goes straight to the rank that needs it, on a stream of its own. On the wire, a
// block and micro-batch, at most (R - 1) · M · 2KD numbers a rank forward, twice that backward, M
// its tokens. A ring of one has all keys, and computes in one piece.
//
// M tokens that this rank attends for: C chunks of B sequences of Tc tokens; H query heads, K
// key/value heads, D head dim
#pragma once

#include <string>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/plan/token_share.h"
#include "kernels/attention.h"

namespace dstrain {

class RingAttention {
 public:
  /// `attending`: heads, and tokens of a sequence, that this rank attends for.
  static RingAttention declare(const LayerShape& shape,
                               const AttentionShape& attending,
                               const std::string& name,
                               Blueprint& blueprint);

  /// How scores are made and which keys count, but for the positions of the first ones.
  struct Scores {
    AttentionReach reach;  ///< document_positions: of the M queries
    AttentionDropout dropout;
    ConstTensor sinks_H{};  ///< join the softmax of each head (Ops::add_sinks); empty: none
  };
  /// packed [M, (H + 2K)·D] → heads [M, H·D]
  void forward(const LayerContext& context,
               int slot,
               const Scores& scores,
               ConstTensor packed,
               Tensor heads) const;
  /// The gradients of sinks, where there are any.
  struct SinkGradient {
    Tensor d_sinks_H{};
    Write write = Write::kOverwrite;
  };
  /// d_packed is overwritten.
  void backward(const LayerContext& context,
                int slot,
                const Scores& scores,
                ConstTensor packed,
                ConstTensor heads,
                ConstTensor d_heads,
                Tensor d_packed,
                const SinkGradient& sinks) const;

  /// The exchanges that a forward and a backward issue, in order, as the elements that this rank
  /// sends in each.
  [[nodiscard]] std::vector<std::int64_t> exchanges(Pass pass) const;

 private:
  /// A chunk of my queries, and one of a source's keys that it sees something of.
  struct Part {
    int query = 0;
    int key = 0;
    bool is_own = false;       ///< a chunk with its own keys, which comes first for both
    bool begins_keys = false;  ///< the first of its step that has gradients for these keys
  };
  /// Who sees whose keys in a step.
  struct Step {
    int source = 0;           ///< the place in the ring whose keys I see
    Range seen;               ///< chunks of them
    int target = 0;           ///< the place that sees mine
    Range sent;               ///< chunks of mine
    std::vector<Part> parts;  ///< in the order in which they are computed
    [[nodiscard]] bool travels() const { return seen.size() > 0 || sent.size() > 0; }
  };
  /// One side of an exchange: chunks of a buffer with a row for each of M tokens.
  struct Message {
    int peer = 0;
    BufferRef keys;
    Range chunks;
  };

  [[nodiscard]] std::vector<Step> find_steps() const;
  [[nodiscard]] std::vector<Part> find_parts(int source) const;
  [[nodiscard]] Range queries_at(int chunk) const {
    return context_.ring_chunk(context_.ring_rank, chunk, sequence_);
  }

  /// All chunks, as so many more sequences.
  [[nodiscard]] AttentionShape all_chunks() const {
    AttentionShape all = chunk_;
    all.batch *= context_.chunks();
    return all;
  }
  [[nodiscard]] std::int64_t chunk_rows() const { return chunk_.batch * chunk_.sequence; }
  [[nodiscard]] std::int64_t query_width() const { return chunk_.query_heads * chunk_.head_dim; }
  [[nodiscard]] std::int64_t key_width() const {
    return 2 * chunk_.key_value_heads * chunk_.head_dim;
  }
  /// The rows that chunks have in a matrix with a row for each of the M tokens.
  template <typename View>
  [[nodiscard]] View chunks_of(View rows, Range chunks) const {
    return rows.rows(chunks.begin * chunk_rows(), chunks.end * chunk_rows());
  }
  template <typename View>
  [[nodiscard]] View chunk_of(View rows, int chunk) const {
    return chunks_of(rows, {chunk, chunk + 1});
  }

  /// `keys`: rows k‖v, or q‖k‖v.
  [[nodiscard]] AttentionOperands operands(const Scores& scores,
                                           int source,
                                           const Part& part,
                                           ConstTensor packed,
                                           ConstTensor keys) const;
  void add_part(const LayerContext& context,
                int slot,
                const AttentionOperands& in,
                const Part& of,
                Tensor heads,
                Tensor sums) const;
  [[nodiscard]] Tensor sum_of_heads(const LayerContext& context, Tensor heads) const;
  void add_columns(const LayerContext& context,
                   ConstTensor rows,
                   Tensor sums,
                   std::int64_t first,
                   Write write) const;
  /// f32 scratch of a shape.
  [[nodiscard]] Tensor wide_view(const LayerContext& context, ConstTensor of) const;

  /// The buffer of a step after the first.
  [[nodiscard]] static BufferRef in_turn(const std::vector<BufferRef>& of, std::size_t step) {
    return of[step % of.size()];
  }
  void pack_own_keys(const LayerContext& context, ConstTensor packed) const;
  /// Start an exchange after what has been enqueued to compute, and return its end; at once where
  /// nothing travels, or behind the last step.
  Event exchange(const LayerContext& context, const Message& sent, const Message& received) const;
  Event pass_keys(const LayerContext& context, std::size_t step) const;
  Event pass_gradients(const LayerContext& context, std::size_t step) const;

  ContextShape context_;
  std::int64_t sequence_ = 1;  // T, whole
  std::int64_t window_ = 0;
  AttentionShape chunk_;  // B sequences of Tc tokens
  std::vector<Step> steps_;
  BufferRef logsumexp_;  // for backward: [C, B, H, Tc]
  BufferRef delta_;      // scratch [B, H, Tc]
  // In a ring of several ranks, all scratch, in turns where there are two:
  BufferRef own_keys_;               // [M, 2KD]
  std::vector<BufferRef> arriving_;  // [M, 2KD]: a source's
  BufferRef part_queries_;           // [B·Tc, HD]: heads of a part, or the gradient of its queries
  BufferRef part_logsumexp_;         // [B, H, Tc]
  BufferRef d_keys_;                 // [B·Tc, 2KD]: of a part
  std::vector<BufferRef> leaving_;   // [M, 2KD]: gradients of the source's keys
  std::vector<BufferRef> returned_;  // [M, 2KD]: of mine
  // Where heads and gradients are not f32, f32:
  BufferRef sums_;  // [M, (H + 2K)D]: of gradients; of heads, [M, HD] at its beginning
  BufferRef wide_;  // [max(B·Tc · HD, M · 2KD)]
};

}  // namespace dstrain
