// Qwen3: LLaMA with an RMS norm of each head of queries and keys, and heads of any size. Of its
// mixture of experts some layers may be dense.
#include "engine/config/arch/family.h"

namespace dstrain {

Family qwen3_family() {
  return {.base = {.model_type = "qwen3", .head_dim = 128, .norm_epsilon = 1e-6F},
          .query_key_norm = QueryKeyNorm::kPerHead,
          .has_attention_bias_key = true,
          .needs_key_value_heads = true,
          .window = WindowKeys::kSwitched,
          .default_first_window_layer = 28,
          .huggingface_class = "Qwen3ForCausalLM",
          .names = with_query_key_norms(llama_names())};
}

Family qwen3_moe_family() {
  Family family = qwen3_family();
  family.base.model_type = "qwen3_moe";
  family.base.head_dim = 0;
  family.base.experts = {.count = 128, .per_token = 8, .balance_coefficient = 0.001F};
  family.base.expert_width = 768;
  family.window = WindowKeys::kSwitchedSize;
  family.default_first_window_layer = std::nullopt;
  family.has_normalised_key = true;
  family.has_dense_layer_keys = true;
  family.spellings = {{"num_local_experts", "num_experts"}};
  family.second_spellings = {{"num_local_experts", "num_local_experts"}};  // of transformers 5
  family.silent = {"max_window_layers"};
  family.huggingface_class = "Qwen3MoeForCausalLM";
  family.names = with_experts(with_query_key_norms(llama_names()));
  family.held_names = with_held_experts(with_query_key_norms(llama_names()));
  return family;
}

}  // namespace dstrain
