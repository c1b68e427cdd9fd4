// A tiny model of every family whose blocks differ from GPT-2's and LLaMA's.
#pragma once

#include <string>
#include <vector>

#include "engine/config/arch/family.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {

inline const std::vector<std::string> kFamilies{
    "qwen3",     "olmo2",       "mistral",  "olmo3",       "smollm3",    "phi3",     "starcoder2",
    "gemma2",    "gemma3_text", "gpt_neox", "opt",         "bloom",      "baichuan", "mixtral",
    "qwen3_moe", "olmoe",       "gpt_oss",  "deepseek_v2", "deepseek_v3"};

/// Two key/value heads, so that of four ranks two share one. Windows are shorter than sequences.
inline TinyOptions tiny_family(const std::string& model_type) {
  const dstrain::Family& family = family_of(model_type);
  const ModelSpec sizes = tiny_model(Family::kLlama);
  ModelSpec model = family.base;
  model.vocab_size = sizes.vocab_size;
  model.hidden_size = sizes.hidden_size;
  model.num_layers = sizes.num_layers;
  model.num_heads = sizes.num_heads;
  model.num_key_value_heads =
      family.has_key_value_keys ? sizes.num_key_value_heads : sizes.num_heads;
  model.head_dim = sizes.head_dim;
  model.intermediate_size = sizes.intermediate_size;
  model.max_positions = sizes.max_positions;
  model.attention_window = family.window == WindowKeys::kNone ? 0 : 5;
  if (is_by_layer(family.window)) {
    model.windowed_layers = {true, false};
  }
  if (family.unrotated_layer_every > 0) {
    model.rotary_layers = {false, true};
  }
  if (family.has_rotated_part_key) {
    model.rotated_part = 0.4;
  }
  if (family.has_cap_keys) {  // so low that they bend what such a small model makes
    model.attention_cap = 0.7F;
    model.logit_cap = 1.5F;
    model.query_scalar = 3.0;
  }
  if (family.scales_full_layers_only) {
    model.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 2.0};
  }
  if (family.base.experts.count > 0) {
    model.experts.count = 5;
    model.experts.per_token = 2;
    model.experts.balance_coefficient = 0.1F;
    model.adds_balance_loss = true;
    model.expert_width = family.base.expert_width > 0 ? sizes.intermediate_size / 2 : 0;
    model.expert_layers =
        family.has_dense_layer_keys ? std::vector<bool>{true, false} : std::vector<bool>{};
  }
  if (model.feed_forward_limit > 0.0F) {  // so low that it binds
    model.feed_forward_limit = 0.1F;
  }
  if (family.base.latent.latent_rank > 0) {
    model.latent = {
        .latent_rank = 14, .query_rank = 12, .plain_dim = 6, .rotated_dim = 4, .value_dim = 8};
    // One family of latents without an auxiliary loss, and one with that of sigmoids.
    model.adds_balance_loss = model.experts.balancing_bias;
    if (!model.adds_balance_loss) model.experts.balance_coefficient = 0.0F;
    if (model.experts.balancing_bias) {  // two groups of three, and a rate that shows
      model.experts.count = 6;
      model.experts.groups = 2;
      model.experts.chosen_groups = 1;
      model.experts.bias_update_rate = 0.01F;
    }
    model.experts.shared_width = 20;
    model.expert_layers = {false, true};
  }
  if (family.has_unit_head_key) {  // Baichuan 2 of 13 B
    model.position = PositionKind::kAlibi;
    model.unit_head = true;
  }
  return {.model = model, .micro_batch = 4, .gradient_clipping = 0.5, .steps = 10};
}

/// A family with experts, as many as divide among 2, 4 and 8 ranks, 3 of them for each token.
inline TinyOptions tiny_experts(const std::string& model_type) {
  TinyOptions options = tiny_family(model_type);
  options.model->experts.count = 8;
  options.model->experts.per_token = 3;
  options.micro_batch = 8;
  return options;
}

}  // namespace dstrain::test
