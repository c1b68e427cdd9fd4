// BLOOM: scores that fall with distance in place of positions (ALiBi), a LayerNorm of the
// embedding, GPT-2's LayerNorm, biases and plain feed-forward; files that hold q‖k‖v head by head.
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
  const std::string block = "transformer.h.{}.";
  rows.push_back({"transformer.word_embeddings.weight", false, {"embedding.token.weight"}});
  add("transformer.word_embeddings_layernorm", "embedding.norm.weight", "embedding.norm.bias");
  add(block + "input_layernorm", "blocks.{}.attention_norm.weight",
      "blocks.{}.attention_norm.bias");
  rows.push_back({.theirs = block + "self_attention.query_key_value.weight",
                  .ours = {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
                           "blocks.{}.attention.value.weight"},
                  .by_heads = true});
  rows.push_back({.theirs = block + "self_attention.query_key_value.bias",
                  .ours = {"blocks.{}.attention.query.bias", "blocks.{}.attention.key.bias",
                           "blocks.{}.attention.value.bias"},
                  .by_heads = true});
  add(block + "self_attention.dense", "blocks.{}.attention.output.weight",
      "blocks.{}.attention.output.bias");
  add(block + "post_attention_layernorm", "blocks.{}.mlp_norm.weight", "blocks.{}.mlp_norm.bias");
  add(block + "mlp.dense_h_to_4h", "blocks.{}.mlp.up.weight", "blocks.{}.mlp.up.bias");
  add(block + "mlp.dense_4h_to_h", "blocks.{}.mlp.down.weight", "blocks.{}.mlp.down.bias");
  add("transformer.ln_f", "final_norm.weight", "final_norm.bias");
  rows.push_back({"lm_head.weight", false, {"head.weight"}});
  return rows;
}

}  // namespace

Family bloom_family() {
  return {.base = {.model_type = "bloom",
                   .max_positions = 2048,  // what all were trained with; the class has no such key
                   .norm = NormKind::kLayerNorm,
                   .norm_epsilon = 1e-5F,
                   .position = PositionKind::kAlibi,
                   .activation = ActivationKind::kGeluTanh,
                   .gated_mlp = false,
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true,
                   .tied_embeddings = true},
          .has_key_value_keys = false,
          .normalizes_embeddings = true,
          .spellings = {{"num_hidden_layers", "n_layer"},
                        {"num_attention_heads", "n_head"},
                        {"intermediate_size", ""},
                        {"hidden_act", ""},
                        {"max_position_embeddings", "seq_length"},
                        {"rms_norm_eps", "layer_norm_epsilon"}},
          .second_spellings = {{"hidden_size", "n_embed"},
                               {"num_hidden_layers", "num_hidden_layers"},
                               {"num_attention_heads", "num_attention_heads"}},
          .dropouts = {{"hidden_dropout", {&DropoutConfig::residual}},
                       {"attention_dropout", {&DropoutConfig::attention}}},
          // Of tensor parallelism in the original code and of how it rounds.
          .silent = {"pretraining_tp", "slow_but_exact", "skip_bias_add", "skip_bias_add_qkv",
                     "bias_dropout_fusion", "masked_softmax_fusion", "attention_softmax_in_fp32",
                     "offset_alibi"},
          .refused = {{"apply_residual_connection_post_layernorm",
                       {"false"},
                       "residual additions to what the norms make are not in this version"},
                      {"n_inner", {}, "the feed-forward is four times as wide as the model"}},
          .huggingface_class = "BloomForCausalLM",
          .huggingface_prefix = "transformer.",
          .names = names()};
}

}  // namespace dstrain
