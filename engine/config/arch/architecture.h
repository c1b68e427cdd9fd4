// Architecture: what every layer of a model is, as data. The layers that compute it, the list of
// its tensors, counts of parameters and FLOPs and the balance of a pipeline all read it. Layers may
// differ from each other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/arch/experts_spec.h"
#include "engine/config/arch/norm_places.h"
#include "engine/config/model_spec.h"

namespace dstrain {

struct NormSpec {
  NormKind kind = NormKind::kRmsNorm;
  float epsilon = 1e-5F;
  bool operator==(const NormSpec&) const = default;
};

/// Positions as rotations of queries and keys.
struct RotarySpec {
  std::int64_t dims = 0;  ///< of each head, from its first number on
  double theta = 10000.0;
  RopeScaling scaling{};
  bool operator==(const RotarySpec&) const = default;
};

struct AttentionSpec {
  std::int64_t heads = 0;            ///< H
  std::int64_t key_value_heads = 0;  ///< K, divides H
  std::int64_t head_dim = 0;         ///< D
  bool qkv_bias = false;
  bool output_bias = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  std::optional<RotarySpec> rotary{};
  bool falls = false;       ///< scores fall with distance by the heads' slopes: alibi_slope()
  std::int64_t window = 0;  ///< positions that a query attends to; 0: all up to its own
  float scale = 0.0F;       ///< what q · k is multiplied with; 0: 1/sqrt(D)
  float cap = 0.0F;         ///< scores become cap · tanh(score / cap); 0: they stay
  std::optional<LatentSpec> latent{};  ///< how queries, keys and values are made; K is H then
  bool sinks = false;  ///< each head has one more score, which is learned and takes no value

  [[nodiscard]] std::int64_t query_width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t key_value_width() const { return key_value_heads * head_dim; }
  /// The numbers of all heads' results.
  [[nodiscard]] std::int64_t result_width() const {
    return heads * (latent ? latent->value_dim : head_dim);
  }
  bool operator==(const AttentionSpec&) const = default;
};

/// The amount that scores of one of `heads` heads lose per position of a key before its query:
/// 2^(-8/n) to the powers 1 … n, where n is the largest power of two of heads that there are; those
/// behind take every other one of twice as many (Press et al. 2022, and their code for any number).
float alibi_slope(std::int64_t heads, std::int64_t head);

struct FeedForwardSpec {
  std::int64_t width = 0;  ///< F; of one expert, where there are experts
  ActivationKind activation{};
  bool gated = true;  ///< down(act(gate x) · up x) instead of down(act(up x))
  bool bias = false;
  /// g · σ(1.702 g) · (u + 1) in place of act(g) · u, of g = min(gate, limit) and u = up within
  /// ± limit (gpt-oss). 0: there is none.
  float limit = 0.0F;
  std::optional<ExpertsSpec> experts{};
  bool operator==(const FeedForwardSpec&) const = default;
};

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  NormSpec norm;  ///< all norms of the block, and those of queries and keys
  NormPlacement norm_placement = NormPlacement::kBeforeBranch;
  bool parallel_branches = false;    ///< x + attention(norm1(x)) + mlp(norm2(x)), norms before both
  float deviation = 0.02F;           ///< of initial weights
  float residual_deviation = 0.02F;  ///< of those of the two projections into the residual stream
  bool operator==(const LayerSpec&) const = default;
};

struct Architecture {
  Architecture() = default;
  /// Implicit: the numbers of a model determine its architecture.
  Architecture(const ModelSpec& model);  // NOLINT(google-explicit-constructor)

  std::int64_t vocab_size = 0;         ///< V
  std::int64_t hidden_size = 0;        ///< C
  std::int64_t learned_positions = 0;  ///< rows of the table of positions; 0: there is none
  std::int64_t first_position = 0;     ///< the row of position 0; those before it have no token
  bool embedding_norm = false;         ///< of a token's row: BLOOM
  bool tied_embeddings = false;        ///< the head is the table of tokens
  bool scores = false;                 ///< the head has one row: a score of each token
  bool values = false;                 ///< another head has one row: a value of each token
  bool unit_head = false;              ///< the head's rows count with length one: Baichuan 2
  float embedding_scale = 1.0F;        ///< of a token's row, without positions
  float logit_cap = 0.0F;              ///< logits become cap · tanh(logit / cap); 0: they stay
  float deviation = 0.02F;             ///< of initial embeddings and head
  NormSpec final_norm;                 ///< and that of the embedding
  std::vector<LayerSpec> layers;
};

}  // namespace dstrain
