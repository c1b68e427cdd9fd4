// Phi-3 and Phi-4: LLaMA whose files hold q‖k‖v and gate‖up as one matrix each; some models rotate
// a part of each head. Those with 128k positions scale them by LongRoPE.
#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  return {
      {"model.embed_tokens.weight", false, {"embedding.token.weight"}},
      {"model.layers.{}.input_layernorm.weight", false, {"blocks.{}.attention_norm.weight"}},
      {"model.layers.{}.self_attn.qkv_proj.weight",
       false,
       {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
        "blocks.{}.attention.value.weight"}},
      {"model.layers.{}.self_attn.o_proj.weight", false, {"blocks.{}.attention.output.weight"}},
      {"model.layers.{}.post_attention_layernorm.weight", false, {"blocks.{}.mlp_norm.weight"}},
      {"model.layers.{}.mlp.gate_up_proj.weight",
       false,
       {"blocks.{}.mlp.gate.weight", "blocks.{}.mlp.up.weight"}},
      {"model.layers.{}.mlp.down_proj.weight", false, {"blocks.{}.mlp.down.weight"}},
      {"model.norm.weight", false, {"final_norm.weight"}},
      {"lm_head.weight", false, {"head.weight"}},
  };
}

}  // namespace

Family phi3_family() {
  return {.base = {.model_type = "phi3", .norm_epsilon = 1e-5F},
          .window = WindowKeys::kSize,
          .default_window = std::nullopt,
          .has_rotated_part_key = true,
          .default_original_positions = 4096,
          .dropouts = {{"resid_pdrop", {&DropoutConfig::residual}},
                       {"embd_pdrop", {&DropoutConfig::embedding}},
                       {"attention_dropout", {&DropoutConfig::attention}}},
          .silent = {"interpolate_factor", "full_attn_mod"},
          .refused = {{"lm_head_bias", {"false"}, "a head with biases is not in this version"}},
          .huggingface_class = "Phi3ForCausalLM",
          .names = names()};
}

}  // namespace dstrain
