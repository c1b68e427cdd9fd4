// ModelSpec: the numbers that define one decoder-only transformer, as a Hugging Face config.json
// describes them. What its families have in common, and what follows from it, stands in arch/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/arch/experts_spec.h"
#include "kernels/op_kinds.h"

namespace dstrain {

enum class PositionKind : std::uint8_t {
  kLearned,
  kRope,
  kAlibi  ///< scores fall with distance, in each head by another slope (Press et al. 2022)
};

enum class RopeScalingKind : std::uint8_t {
  kNone,
  kLinear,   ///< every frequency divided by `factor` (Chen et al. 2023)
  kLlama3,   ///< long wavelengths divided, short ones kept, those between blended (Llama 3.1)
  kYarn,     ///< the same by rotations within the original positions (Peng et al. 2023)
  kLongRope  ///< each divided by a number of its own, of two lists (Ding et al. 2024)
};

/// How RoPE frequencies are stretched beyond the positions that a model was first trained with.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  double low_frequency_factor = 1.0;  ///< of kLlama3, as high_frequency_factor
  double high_frequency_factor = 4.0;
  std::int64_t original_max_positions = 8192;  ///< of kLlama3, kYarn and kLongRope
  double fast_rotations = 32.0;   ///< of kYarn: frequencies with more of them are kept,
  double slow_rotations = 1.0;    ///< those with fewer divided
  bool whole_pairs = true;        ///< of kYarn: the border between the two is rounded outwards
  double attention_factor = 1.0;  ///< of kYarn and kLongRope: queries and keys grow by it
  /// With kYarn, in latent attention alone (DeepSeek-V2's mscale_all_dim), scores grow by the
  /// square of 1 + a tenth of it times ln(factor). 0: they stay.
  double score_growth = 0.0;
  std::vector<double> short_factors{};  ///< of kLongRope, a number a pair: of texts within the
  std::vector<double> long_factors{};   ///< original positions, and of longer ones

  /// Whether texts of so many tokens are longer than the original positions, of kLongRope.
  [[nodiscard]] bool is_long(std::int64_t tokens) const {
    return kind == RopeScalingKind::kLongRope && tokens > original_max_positions;
  }
  bool operator==(const RopeScaling&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1): keys and values of all heads
/// come from one latent of a token, and so may queries. Of each head of queries and keys some
/// numbers rotate, and those of keys are the same in all heads.
struct LatentSpec {
  std::int64_t latent_rank = 0;  ///< L, of keys and values; 0: attention is not of this kind
  std::int64_t query_rank = 0;   ///< of queries; 0: they come straight from the stream
  std::int64_t plain_dim = 0;    ///< P, numbers of a head that do not rotate
  std::int64_t rotated_dim = 0;  ///< R, those that do
  std::int64_t value_dim = 0;    ///< V, of a head of values
  bool operator==(const LatentSpec&) const = default;
};

/// The width of a feed-forward of which nothing is said, in widths of the model.
inline constexpr std::int64_t kFeedForwardTimes = 4;

struct ModelSpec {
  std::string model_type = "llama";      ///< one of families() in arch/family.h
  std::int64_t vocab_size = 0;           ///< V
  std::int64_t hidden_size = 0;          ///< C
  std::int64_t num_layers = 0;           ///< L
  std::int64_t num_heads = 0;            ///< H
  std::int64_t num_key_value_heads = 0;  ///< K, divides H
  std::int64_t head_dim = 0;             ///< D
  std::int64_t intermediate_size = 0;    ///< F
  std::int64_t max_positions = 0;        ///< longest sequence
  NormKind norm = NormKind::kRmsNorm;
  float norm_epsilon = 1e-5F;
  PositionKind position = PositionKind::kRope;
  double rope_theta = 10000.0;
  double window_rope_theta = 0.0;  ///< of layers with a window; 0: rope_theta
  RopeScaling rope_scaling;
  double rotated_part = 1.0;        ///< of each head, from its first number on
  std::vector<bool> rotary_layers;  ///< of each layer, whether it rotates; empty: all do
  /// The number of positions that one attends to, its own included; 0: all up to its own.
  std::int64_t attention_window = 0;
  std::int64_t first_window_layer = 0;  ///< blocks before it have no window (Qwen2)
  /// By layer, whether it has the window; empty: all from first_window_layer on have it.
  std::vector<bool> windowed_layers;
  float attention_cap = 0.0F;   ///< scores become cap · tanh(score / cap) (Gemma 2); 0: they stay
  float logit_cap = 0.0F;       ///< the same of logits
  double query_scalar = 0.0;    ///< scores are q · k over its square root; 0: over head_dim's
  ActivationKind activation{};  ///< SiLU, the first of them, unless the family says otherwise
  bool gated_mlp = true;        ///< down(act(gate x) · up x) instead of down(act(up x))
  float feed_forward_limit = 0.0F;  ///< FeedForwardSpec::limit
  /// Of layers with experts; its balance_coefficient counts only if adds_balance_loss.
  ExpertsSpec experts;
  std::int64_t expert_width = 0;    ///< F of one expert where it has a key; 0: intermediate_size
  std::vector<bool> expert_layers;  ///< by layer, whether it has experts; empty: all have
  bool adds_balance_loss = false;
  LatentSpec latent;               ///< head_dim is then P + R
  bool parallel_branches = false;  ///< both halves of a block read what the block does (GPT-NeoX)
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tied_embeddings = false;
  /// The head gives each token a score, a single number, instead of logits: a reward model. It is
  /// then not tied, whatever tied_embeddings says of the model that it was made of.
  bool scores = false;
  /// Beside its head there is another of one row, which gives each token a value: the reward that
  /// is to be expected after it ("ppo").
  bool values = false;
  bool unit_head = false;             ///< the head's rows count with length one (Baichuan 2)
  float initializer_range = 0.02F;    ///< deviation of initial weights
  bool scaled_residual_init = false;  ///< GPT-2: residual projections × 1/sqrt(2L)

  /// The window of one block; 0: none.
  [[nodiscard]] std::int64_t window_of_layer(std::int64_t layer) const {
    const bool has_it = windowed_layers.empty()
                            ? layer >= first_window_layer
                            : windowed_layers.at(static_cast<std::size_t>(layer));
    return has_it ? attention_window : 0;
  }
  [[nodiscard]] bool rotates(std::int64_t layer) const {
    return position == PositionKind::kRope &&
           (rotary_layers.empty() || rotary_layers.at(static_cast<std::size_t>(layer)));
  }
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return experts.count > 0 &&
           (expert_layers.empty() || expert_layers.at(static_cast<std::size_t>(layer)));
  }
  [[nodiscard]] std::int64_t width_of_expert() const {
    return expert_width > 0 ? expert_width : intermediate_size;
  }
  /// Whether the feed-forward of any layer is intermediate_size wide.
  [[nodiscard]] bool uses_intermediate_size() const {
    return experts.count == 0 || expert_width == 0 ||
           std::find(expert_layers.begin(), expert_layers.end(), false) != expert_layers.end();
  }
  /// The count of numbers of each head that are rotated; even.
  [[nodiscard]] std::int64_t rotated_dims() const {
    if (latent.latent_rank > 0) return latent.rotated_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotated_part);
  }
  bool operator==(const ModelSpec&) const = default;
};

}  // namespace dstrain
