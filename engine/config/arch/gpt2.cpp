// GPT-2: learned positions, LayerNorm, biases everywhere, a plain feed-forward.
#include "engine/config/arch/family.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

// Conv1D keeps y = x·W + b: W is [in, out].
std::vector<ForeignRow> names() {
  return {
      {"transformer.wte.weight", false, {"embedding.token.weight"}},
      {"transformer.wpe.weight", false, {"embedding.position.weight"}},
      {"transformer.h.{}.ln_1.weight", false, {"blocks.{}.attention_norm.weight"}},
      {"transformer.h.{}.ln_1.bias", false, {"blocks.{}.attention_norm.bias"}},
      {"transformer.h.{}.attn.c_attn.weight",
       true,
       {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
        "blocks.{}.attention.value.weight"}},
      {"transformer.h.{}.attn.c_attn.bias",
       false,
       {"blocks.{}.attention.query.bias", "blocks.{}.attention.key.bias",
        "blocks.{}.attention.value.bias"}},
      {"transformer.h.{}.attn.c_proj.weight", true, {"blocks.{}.attention.output.weight"}},
      {"transformer.h.{}.attn.c_proj.bias", false, {"blocks.{}.attention.output.bias"}},
      {"transformer.h.{}.ln_2.weight", false, {"blocks.{}.mlp_norm.weight"}},
      {"transformer.h.{}.ln_2.bias", false, {"blocks.{}.mlp_norm.bias"}},
      {"transformer.h.{}.mlp.c_fc.weight", true, {"blocks.{}.mlp.up.weight"}},
      {"transformer.h.{}.mlp.c_fc.bias", false, {"blocks.{}.mlp.up.bias"}},
      {"transformer.h.{}.mlp.c_proj.weight", true, {"blocks.{}.mlp.down.weight"}},
      {"transformer.h.{}.mlp.c_proj.bias", false, {"blocks.{}.mlp.down.bias"}},
      {"transformer.ln_f.weight", false, {"final_norm.weight"}},
      {"transformer.ln_f.bias", false, {"final_norm.bias"}},
      {"lm_head.weight", false, {"head.weight"}},
  };
}

}  // namespace

Family gpt2_family() {
  return {.base = {.model_type = "gpt2",
                   .norm = NormKind::kLayerNorm,
                   .norm_epsilon = 1e-5F,
                   .position = PositionKind::kLearned,
                   .activation = ActivationKind::kGeluTanh,
                   .gated_mlp = false,
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true,
                   .tied_embeddings = true,
                   .scaled_residual_init = true},
          .keys = KeyNames::kGpt2,
          .activation_word = "gelu_new",
          .has_key_value_keys = false,
          .spellings = {{"hidden_size", "n_embd"},
                        {"num_hidden_layers", "n_layer"},
                        {"num_attention_heads", "n_head"},
                        {"intermediate_size", "n_inner"},
                        {"max_position_embeddings", "n_positions"}},
          .dropouts = {{"resid_pdrop", {&DropoutConfig::residual}},
                       {"embd_pdrop", {&DropoutConfig::embedding}},
                       {"attn_pdrop", {&DropoutConfig::attention}}},
          .huggingface_class = "GPT2LMHeadModel",
          .huggingface_prefix = "transformer.",
          .names = names()};
}

}  // namespace dstrain
