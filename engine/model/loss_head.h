// LossHead: final norm, logits, cross-entropy. The logits exist for one chunk of tokens at a time:
// chunk by chunk they are computed, turned into their own gradient in place, and used up by the
// two products of backward (as Liger and llm.q do), so memory does not grow with tokens × V.
//
// Where many targets do not count, as those of prompts in fine-tuning, only some tokens go through
// the head: what they read is moved together, and what comes out is put where they are.
//
// Where the head's rows count with length one, logits are divided by the lengths of the rows, and
// so are their gradients; what is left along the rows of the weight's gradient is taken out of it.
//
// Where targets weigh by what they lose (target_weigher.h) there are two passes over the chunks:
// one for the losses, and, once the weights are known, one that computes the logits again for the
// gradients.
//
// A head that scores makes one number of each token, and no loss: what is minimised is a function
// of scores, and their weights are its derivatives by them. One tensor-parallel rank computes the
// gradients.
//
// A head of values stands beside that of the tokens: one number of each token, of which weights are
// asked together with those of the losses. One tensor-parallel rank computes its gradients, too.
//
// Where the layers extend a cache there is no loss: what counts is the last of the tokens of each
// text, whose logits are asked for when they are needed.
#pragma once

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/norm.h"
#include "engine/model/target_weigher.h"

namespace dstrain {

/// The targets of a micro-batch, all i32. Where M of its N tokens go through the head, M ≥ 1, the
/// other three say which; others have no loss.
struct HeadTargets {
  ConstTensor targets_N;
  ConstTensor rows_M{};     ///< those tokens
  ConstTensor places_N{};   ///< the place of each token among those, or -1
  ConstTensor targets_M{};  ///< of those tokens
};

class LossHead {
 public:
  /// Logits of a chunk take at most this much where LayerShape says nothing else; at least one
  /// token, at most all of them.
  static constexpr std::int64_t kMaxChunkBytes = std::int64_t{128} << 20;

  /// `embedding_table` is what a tied head multiplies by.
  static LossHead declare(const LayerShape& shape, ParamRef embedding_table, Blueprint& blueprint);

  /// Computes the final norm of residual + delta; where a cache is extended, only of the last token
  /// of each text.
  void forward(const LayerContext& context,
               int slot,
               ConstTensor residual,
               ConstTensor delta) const;
  /// After a forward that extends a cache: f32 [ranks, texts, columns], the logits of what follows
  /// the last token of each: of each tensor-parallel rank those of its part of the vocabulary, some
  /// of the last columns being of no token; or [1, texts, 1], that token's score. Valid until the
  /// next call.
  [[nodiscard]] ConstTensor next_logits(const LayerContext& context) const;
  /// Computes losses only, after forward. Valid until the slot's backward. hits_N (f32; or empty):
  /// 1 where a target is the likeliest token, else 0.
  void compute_losses(const LayerContext& context,
                      int slot,
                      const HeadTargets& targets,
                      Tensor hits_N) const;
  /// The results of the last compute_losses or evaluate.
  [[nodiscard]] TargetNumbers found(const LayerContext& context) const {
    return {.losses = context.buffer(losses_), .values = context.optional_buffer(values_)};
  }
  /// The place of the weights that backward takes with `weighed`.
  [[nodiscard]] TargetWeights weights(const LayerContext& context) const {
    return {.losses = context.buffer(weights_), .values = context.optional_buffer(value_weights_)};
  }
  /// The same, and loss_sum = or += Σ losses of the first `counted_samples` sequences, at least
  /// one; hit_sum likewise.
  void evaluate(const LayerContext& context,
                int slot,
                const HeadTargets& targets,
                std::int64_t counted_samples,
                Write loss_write) const;
  /// Computes losses and gradients: d_residual (overwritten), the head's own, and the tied table's.
  /// Every token's loss counts `gradient_scale` times; where `weighed`, times its weight too.
  void backward(const LayerContext& context,
                int slot,
                const HeadTargets& targets,
                float gradient_scale,
                bool weighed,
                Write loss_write,
                Tensor d_residual,
                const GradTarget& head_gradients,
                const GradTarget& embedding_gradients) const;
  /// f64, one element: the sum of losses in nats.
  [[nodiscard]] Tensor loss_sum(const LayerContext& context) const {
    return context.buffer(loss_sum_);
  }
  /// f64, one element: the number of targets that were the likeliest tokens, of the last evaluate.
  [[nodiscard]] Tensor hit_sum(const LayerContext& context) const {
    return context.buffer(hit_sum_);
  }
  [[nodiscard]] bool tied() const { return tied_; }

 private:
  /// The gradient by each token of a head of one row, [N, 1], and that of its row `weight`, from
  /// the weights of what it gave.
  Tensor one_row_backward(const LayerContext& context,
                          ParamRef weight,
                          ConstTensor weights_N,
                          ConstTensor hidden,
                          float gradient_scale,
                          const GradTarget& head_gradients) const;
  /// Adds the gradient by what the head of values read to d_norm_.
  void add_input_gradient(const LayerContext& context, ConstTensor d_values, Tensor d_norm) const;
  /// The tokens that go through the head, of those that `targets` tells of; all of them, or moved
  /// together. What is written is to be put in its place when all is.
  struct Rows {
    std::int64_t count = 0;
    Tensor moved;  ///< [count, C] what they read, in memory that may be overwritten; or empty
    ConstTensor hidden;
    ConstTensor targets;
    Tensor losses;
    Tensor hits;  ///< empty where they are not asked for
  };
  [[nodiscard]] Rows rows_of(const LayerContext& context,
                             ConstTensor hidden_N,
                             const HeadTargets& targets,
                             Tensor hits_N) const;
  /// Where rows have been moved, puts a number of each, f32, or a row of each in its place; zeros
  /// in those of other tokens.
  static void put_back(const LayerContext& context,
                       ConstTensor of_rows,
                       const HeadTargets& targets,
                       Tensor of_tokens);
  /// The weights of the tokens that go through the head.
  [[nodiscard]] ConstTensor weights_of(const LayerContext& context,
                                       const HeadTargets& targets) const;
  /// Rows [begin, end), and how many ranks with slices of the vocabulary tell each other of.
  struct Chunk {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t told = 0;
    [[nodiscard]] std::int64_t rows() const { return end - begin; }
  };
  /// Calls `body(chunk)` for chunks of the rows, one after the other. Where ranks have slices of
  /// the vocabulary, there are as many as all tokens take, of which the last may be empty, and
  /// ranks tell each other of whole ones: what they send does not depend on which targets count.
  template <typename Body>
  void for_each_chunk(const LayerContext& context, std::int64_t rows, Body&& body) const;
  [[nodiscard]] bool has_values() const { return value_weights_.index >= 0; }
  /// For those of unit rows, before logits of the same weight are computed.
  void measure_rows(const LayerContext& context) const;
  /// Writes the logits of as many tokens as `hidden` holds final norms.
  void compute_logits(const LayerContext& context, ConstTensor hidden, Tensor logits) const;
  /// Computes the losses of a chunk from this rank's logits and what the others found; fills stats_
  /// and logsumexp_.
  void combine_losses(const LayerContext& context,
                      const Chunk& chunk,
                      ConstTensor logits,
                      ConstTensor targets,
                      Tensor losses) const;

  std::int64_t tokens_ = 0;
  std::int64_t batch_ = 1;
  int sequence_chunks_ = 1;  // in which this rank's tokens lie, sequence by sequence in each
  std::int64_t chunk_tokens_ = 0;
  VocabSlice slice_;  // of the vocabulary: this rank's columns of the logits
  bool tied_ = false;
  bool scores_ = false;
  float logit_cap_ = 0.0F;  // 0: none
  Norm norm_;
  BufferRef last_residual_;  // scratch [texts, C], as the next, where several texts are read
  BufferRef last_delta_;
  ParamRef weight_;          // [V, C]: own, or the embedding's
  BufferRef all_logits_;     // scratch [ranks, texts, V]; where several ranks extend a cache
  BufferRef logits_;         // scratch [chunk, V]; [texts, V] where a cache is extended
  BufferRef losses_;         // scratch [N]
  BufferRef weights_;        // scratch [N], where targets have weights
  ParamRef value_weight_;    // [1, C], of a head of values, with the next three
  BufferRef values_;         // scratch [N]
  BufferRef value_weights_;  // scratch [N]
  BufferRef d_value_input_;  // scratch [chunk, C]
  BufferRef d_one_row_;      // scratch [N, 1], of a head of one row
  BufferRef d_norm_;         // scratch [N, C]
  BufferRef loss_sum_;
  BufferRef hits_;     // scratch [N]
  BufferRef hit_sum_;  // scratch, one element
  BufferRef squares_;  // scratch [V]: of the rows' lengths, where they count with length one
  // Per chunk:
  BufferRef stats_;      // scratch [ranks, rows, 3]: maxima, sums and targets of all ranks
  BufferRef logsumexp_;  // scratch [chunk]
  BufferRef gathered_;   // scratch [N, C]; sequence parallelism only
  // Where the tokens that go through the head are moved together, theirs:
  BufferRef moved_;         // scratch [N, C]: what they read, then its gradient
  BufferRef moved_losses_;  // scratch [N], as the next two
  BufferRef moved_hits_;
  BufferRef moved_weights_;  // where targets have weights
  BufferRef told_stats_;     // scratch [ranks, chunk, 3], where ranks tell each other theirs
};

}  // namespace dstrain
