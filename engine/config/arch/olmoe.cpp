// OLMoE: LLaMA with a mixture of experts in every block, weighed by their shares of all; all heads
// of queries, and of keys, are normalised together.
#include "engine/config/arch/family.h"

namespace dstrain {

Family olmoe_family() {
  return {
      .base = {.model_type = "olmoe",
               .norm_epsilon = 1e-5F,
               .experts = {.count = 64, .per_token = 8, .balance_coefficient = 0.01F}},
      .query_key_norm = QueryKeyNorm::kFullWidth,
      .has_attention_bias_key = true,
      .spellings = {{"num_local_experts", "num_experts"}},
      .second_spellings = {{"num_local_experts", "num_local_experts"}},
      .has_normalised_key = true,
      .refused = {{"clip_qkv", {}, "limits of queries, keys and values are not in this version"}},
      .huggingface_class = "OlmoeForCausalLM",
      .names = with_experts(with_query_key_norms(llama_names())),
      .held_names = with_held_experts(with_query_key_norms(llama_names()))};
}

}  // namespace dstrain
