// Attention: causal multi-head attention with grouped key/value heads, RoPE, learned positions or
// scores that fall with distance (ALiBi).
//
//   qkv = x · [query; key; value]ᵀ + bias        [N, (H + 2K)·D]
//   normalise q and k, where the model does; or all of it from latents (latent_projection.h)
//   rotate q and k (layers with RoPE)
//   heads = softmax(q · kᵀ / sqrt(D), causal, in the layer's window) · v
//                                                 [N, H·D]; only the log-sum-exp is kept
//   a learned score of each head, a sink, takes its share of the softmax, where the model has them
//   y = heads · outputᵀ + bias                    [N, C]
//
// Where a sequence holds several documents, each token sees its own, and its position is the one in
// there. Where ranks share sequences, they exchange tokens for heads around the softmax
// (head_exchange.h), and keys come by from other ranks (ring_attention.h). Where the layers extend
// a cache, keys and values go into it, and queries attend to what it holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/model/head_exchange.h"
#include "engine/model/latent_projection.h"
#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/linear.h"
#include "engine/model/query_key_norms.h"
#include "engine/model/ring_attention.h"
#include "engine/plan/traffic_plan.h"
#include "kernels/attention.h"

namespace dstrain {

class Attention {
 public:
  static Attention declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  /// Fills the constant tables of RoPE and the slopes of ALiBi, before the first forward. With
  /// LongRoPE training rotates as texts of a whole sequence are, also where documents in it or a
  /// step's sequences (a ramp's) are shorter, so that a model is the same function throughout a
  /// run; what extends a cache, as texts up to the end of the extension's first are.
  void prepare(const LayerContext& context) const;
  void forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor y_NC) const;
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy_NC,
                ConstTensor x_NC,
                Tensor dx_NC,
                const GradTarget& gradients) const;

  /// What ranks that share sequences exchange within a pass, in order.
  [[nodiscard]] std::vector<ContextTransfer> context_traffic(Pass pass) const;

 private:
  [[nodiscard]] AttentionReach reach_of(const LayerContext& context, int slot) const;
  [[nodiscard]] RingAttention::Scores scores_of(const LayerContext& context, int slot) const;
  /// The numbers that belong to the heads to attend with, of one for each head of this rank.
  template <typename View>
  [[nodiscard]] View of_dealt_heads(View of_heads_H) const {
    const std::int64_t dealt = exchange_.dealt().query_heads;
    const std::int64_t first = first_head_ % own_.query_heads;
    return of_heads_H.flat(first, first + dealt);
  }
  [[nodiscard]] RingAttention::SinkGradient sink_gradient(const LayerContext& context,
                                                          const GradTarget& gradients) const;
  void rotate(const LayerContext& context, int slot, Tensor packed, Pass pass) const;
  void attend_to_cache(const LayerContext& context,
                       int slot,
                       ConstTensor packed,
                       Tensor heads) const;

  AttentionSpec spec_;
  std::int64_t first_head_ = 0;  // that this rank attends with, among the model's query heads
  AttentionShape own_;           // of this rank's tokens
  Linear qkv_;
  std::optional<LatentProjection> latent_;  // in place of qkv_ and norms_
  QueryKeyNorms norms_;
  ParamRef sinks_;  // index < 0: none
  HeadExchange exchange_;
  RingAttention ring_;
  Linear output_;
  AttentionDropout dropout_;  // without the samples
  BufferRef token_positions_;
  BufferRef query_positions_;
  BufferRef first_sample_;
  BufferRef packed_;  // for backward: q‖k‖v after rotation, of the tokens and heads to attend with
  BufferRef heads_;  // for backward, of this rank's tokens
  BufferRef cache_;  // [texts · P, 2K·D], a position a row k‖v; where it is extended
  std::int64_t cache_positions_ = 0;  // P
  BufferRef cached_logsumexp_;        // scratch [H, T]; with sinks, where the cache is extended
  BufferRef cosine_;                  // constant
  BufferRef sine_;                    // constant
  BufferRef slopes_;                  // constant, of the heads to attend with
  BufferRef d_packed_;                // scratch
  BufferRef d_heads_;                 // scratch
  // Where heads are exchanged:
  BufferRef own_packed_;    // scratch: of this rank's tokens
  BufferRef attended_;      // for backward: results of the heads to attend with
  BufferRef d_own_packed_;  // scratch
  BufferRef d_attended_;    // scratch
};

}  // namespace dstrain
