// LLaMA: rotary positions, RMSNorm, a gated feed-forward with SiLU. Mistral differs by its window,
// which Ministral has in the layers that its config.json names.
#include "engine/config/arch/family.h"

namespace dstrain {

std::vector<ForeignRow> llama_names() {
  return {
      {"model.embed_tokens.weight", false, {"embedding.token.weight"}},
      {"model.layers.{}.input_layernorm.weight", false, {"blocks.{}.attention_norm.weight"}},
      {"model.layers.{}.self_attn.q_proj.weight", false, {"blocks.{}.attention.query.weight"}},
      {"model.layers.{}.self_attn.q_proj.bias", false, {"blocks.{}.attention.query.bias"}},
      {"model.layers.{}.self_attn.k_proj.weight", false, {"blocks.{}.attention.key.weight"}},
      {"model.layers.{}.self_attn.k_proj.bias", false, {"blocks.{}.attention.key.bias"}},
      {"model.layers.{}.self_attn.v_proj.weight", false, {"blocks.{}.attention.value.weight"}},
      {"model.layers.{}.self_attn.v_proj.bias", false, {"blocks.{}.attention.value.bias"}},
      {"model.layers.{}.self_attn.o_proj.weight", false, {"blocks.{}.attention.output.weight"}},
      {"model.layers.{}.self_attn.o_proj.bias", false, {"blocks.{}.attention.output.bias"}},
      {"model.layers.{}.post_attention_layernorm.weight", false, {"blocks.{}.mlp_norm.weight"}},
      {"model.layers.{}.mlp.gate_proj.weight", false, {"blocks.{}.mlp.gate.weight"}},
      {"model.layers.{}.mlp.gate_proj.bias", false, {"blocks.{}.mlp.gate.bias"}},
      {"model.layers.{}.mlp.up_proj.weight", false, {"blocks.{}.mlp.up.weight"}},
      {"model.layers.{}.mlp.up_proj.bias", false, {"blocks.{}.mlp.up.bias"}},
      {"model.layers.{}.mlp.down_proj.weight", false, {"blocks.{}.mlp.down.weight"}},
      {"model.layers.{}.mlp.down_proj.bias", false, {"blocks.{}.mlp.down.bias"}},
      {"model.norm.weight", false, {"final_norm.weight"}},
      {"lm_head.weight", false, {"head.weight"}},
  };
}

std::vector<ForeignRow> with_query_key_norms(std::vector<ForeignRow> rows) {
  rows.insert(rows.end() - 2,  // before the final norm and the head
              {{"model.layers.{}.self_attn.q_norm.weight",
                false,
                {"blocks.{}.attention.query_norm.weight"}},
               {"model.layers.{}.self_attn.k_norm.weight",
                false,
                {"blocks.{}.attention.key_norm.weight"}}});
  return rows;
}

Family llama_family() {
  return {.base = {.model_type = "llama", .norm_epsilon = 1e-6F},
          .has_attention_bias_key = true,
          .has_mlp_bias_key = true,
          .huggingface_class = "LlamaForCausalLM",
          .names = llama_names()};
}

Family mistral_family() {
  return {.base = {.model_type = "mistral", .norm_epsilon = 1e-6F},
          .needs_key_value_heads = true,
          .window = WindowKeys::kSize,
          .huggingface_class = "MistralForCausalLM",
          .names = llama_names()};
}

Family ministral_family() {
  Family family = mistral_family();
  family.base.model_type = "ministral";
  family.window = WindowKeys::kByLayer;
  family.huggingface_class = "MinistralForCausalLM";
  return family;
}

}  // namespace dstrain
