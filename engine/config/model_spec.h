// ModelSpec: the numbers that define one decoder-only transformer, and what follows from them in
// closed form. Covers GPT-2 and LLaMA / Mistral / Qwen2; described by a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/op_kinds.h"

namespace dstrain {

enum class PositionKind : std::uint8_t { kLearned, kRope };

/// Llama-3.1's stretched RoPE frequencies ("rope_type": "llama3").
struct RopeScaling {
  double factor = 1.0;  ///< 1: off
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_max_positions = 8192;

  bool operator==(const RopeScaling&) const = default;
};

struct ModelSpec {
  std::string model_type = "llama";      ///< gpt2 | llama | mistral | qwen2
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
  RopeScaling rope_scaling;
  /// Positions that one attends to, its own included; 0: all up to its own. Training never has
  /// sequences longer than that, so only generation comes to the end of it.
  std::int64_t attention_window = 0;
  std::int64_t first_window_layer = 0;  ///< blocks before it have no window (Qwen2)
  ActivationKind activation{};  ///< SiLU, the first of them, unless the family says otherwise
  bool gated_mlp = true;        ///< down(act(gate x) · up x) instead of down(act(up x))
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tied_embeddings = false;
  float initializer_range = 0.02F;    ///< deviation of initial weights
  bool scaled_residual_init = false;  ///< GPT-2: residual projections × 1/sqrt(2L)

  /// The window of one block; 0: none.
  [[nodiscard]] std::int64_t window_of_layer(std::int64_t layer) const {
    return layer >= first_window_layer ? attention_window : 0;
  }
  /// Parameters; tied weights count once.
  [[nodiscard]] std::int64_t num_parameters() const;
  /// Model FLOPs of forward + backward for one token at sequence length T, recomputation not
  /// counted: 6 × (matmul parameters) + 12·L·H·D·T / 2, attention counted causally (half).
  [[nodiscard]] double flops_per_token(std::int64_t sequence_length) const;

  bool operator==(const ModelSpec&) const = default;
};

}  // namespace dstrain
