// GPT-NeoX and Pythia: attention and feed-forward side by side, a part of each head rotated,
// GPT-2's LayerNorm, biases and plain feed-forward; files that hold q‖k‖v head by head.
#include "engine/config/arch/family.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows;
  const auto add = [&](const std::string& theirs, const char* weight, const char* bias) {
    rows.push_back({theirs + ".weight", false, {weight}});
    rows.push_back({theirs + ".bias", false, {bias}});
  };
  const std::string block = "gpt_neox.layers.{}.";
  rows.push_back({"gpt_neox.embed_in.weight", false, {"embedding.token.weight"}});
  add(block + "input_layernorm", "blocks.{}.attention_norm.weight",
      "blocks.{}.attention_norm.bias");
  rows.push_back({.theirs = block + "attention.query_key_value.weight",
                  .ours = {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
                           "blocks.{}.attention.value.weight"},
                  .by_heads = true});
  rows.push_back({.theirs = block + "attention.query_key_value.bias",
                  .ours = {"blocks.{}.attention.query.bias", "blocks.{}.attention.key.bias",
                           "blocks.{}.attention.value.bias"},
                  .by_heads = true});
  add(block + "attention.dense", "blocks.{}.attention.output.weight",
      "blocks.{}.attention.output.bias");
  add(block + "post_attention_layernorm", "blocks.{}.mlp_norm.weight", "blocks.{}.mlp_norm.bias");
  add(block + "mlp.dense_h_to_4h", "blocks.{}.mlp.up.weight", "blocks.{}.mlp.up.bias");
  add(block + "mlp.dense_4h_to_h", "blocks.{}.mlp.down.weight", "blocks.{}.mlp.down.bias");
  add("gpt_neox.final_layer_norm", "final_norm.weight", "final_norm.bias");
  rows.push_back({"embed_out.weight", false, {"head.weight"}});
  return rows;
}

}  // namespace

Family gpt_neox_family() {
  return {.base = {.model_type = "gpt_neox",
                   .norm = NormKind::kLayerNorm,
                   .norm_epsilon = 1e-5F,
                   .rotated_part = 0.25,
                   .activation = ActivationKind::kGelu,
                   .gated_mlp = false,
                   .parallel_branches = true,
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true},
          .has_attention_bias_key = true,
          .has_parallel_residual_key = true,
          .has_key_value_keys = false,
          .has_rotated_part_key = true,
          .spellings = {{"rms_norm_eps", "layer_norm_eps"},
                        {"rope_theta", "rotary_emb_base"},
                        {"partial_rotary_factor", "rotary_pct"}},
          .dropouts = {{"attention_dropout", {&DropoutConfig::attention}},
                       {"hidden_dropout", {&DropoutConfig::embedding, &DropoutConfig::residual}}},
          .silent = {"classifier_dropout"},
          .huggingface_class = "GPTNeoXForCausalLM",
          .huggingface_prefix = "gpt_neox.",
          .names = names()};
}

}  // namespace dstrain
