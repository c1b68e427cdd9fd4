// StarCoder 2: rotary positions with GPT-2's LayerNorm, biases and plain feed-forward.
#include "engine/config/arch/family.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows;
  const auto add = [&](const std::string& theirs, const char* ours) {
    rows.push_back({theirs, false, {ours}});
  };
  for (const ForeignRow& row : llama_names()) {
    if (row.theirs.find(".mlp.") != std::string::npos) {
      continue;
    }
    rows.push_back(row);
    if (row.theirs.ends_with("input_layernorm.weight")) {
      add("model.layers.{}.input_layernorm.bias", "blocks.{}.attention_norm.bias");
    } else if (row.theirs.ends_with("post_attention_layernorm.weight")) {
      add("model.layers.{}.post_attention_layernorm.bias", "blocks.{}.mlp_norm.bias");
      add("model.layers.{}.mlp.c_fc.weight", "blocks.{}.mlp.up.weight");
      add("model.layers.{}.mlp.c_fc.bias", "blocks.{}.mlp.up.bias");
      add("model.layers.{}.mlp.c_proj.weight", "blocks.{}.mlp.down.weight");
      add("model.layers.{}.mlp.c_proj.bias", "blocks.{}.mlp.down.bias");
    } else if (row.theirs == "model.norm.weight") {
      add("model.norm.bias", "final_norm.bias");
    }
  }
  return rows;
}

}  // namespace

Family starcoder2_family() {
  return {.base = {.model_type = "starcoder2",
                   .norm = NormKind::kLayerNorm,
                   .norm_epsilon = 1e-5F,
                   .activation = ActivationKind::kGeluTanh,
                   .gated_mlp = false,
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true,
                   .tied_embeddings = true,
                   .initializer_range = 0.018042F},
          .has_use_bias_key = true,
          .needs_key_value_heads = true,
          .window = WindowKeys::kSize,
          .default_window = std::nullopt,
          .spellings = {{"rms_norm_eps", "norm_epsilon"}},
          .dropouts = {{"attention_dropout", {&DropoutConfig::attention}},
                       {"residual_dropout", {&DropoutConfig::residual}},
                       {"embedding_dropout", {&DropoutConfig::embedding}}},
          // The first models' files have these beside hidden_act and norm_epsilon, which are the
          // ones that count.
          .silent = {"activation_function", "layer_norm_epsilon", "mlp_type", "norm_type",
                     "scale_attn_weights", "attention_softmax_in_fp32",
                     "scale_attention_softmax_in_fp32"},
          .huggingface_class = "Starcoder2ForCausalLM",
          .names = names()};
}

}  // namespace dstrain
