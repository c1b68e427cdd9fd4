// OPT: GPT-2 with ReLU and LLaMA's names of keys; the first two rows of its table of positions were
// once for padding.
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
  const std::string block = "model.decoder.layers.{}.";
  rows.push_back({"model.decoder.embed_tokens.weight", false, {"embedding.token.weight"}});
  rows.push_back({"model.decoder.embed_positions.weight", false, {"embedding.position.weight"}});
  add(block + "self_attn_layer_norm", "blocks.{}.attention_norm.weight",
      "blocks.{}.attention_norm.bias");
  add(block + "self_attn.q_proj", "blocks.{}.attention.query.weight",
      "blocks.{}.attention.query.bias");
  add(block + "self_attn.k_proj", "blocks.{}.attention.key.weight", "blocks.{}.attention.key.bias");
  add(block + "self_attn.v_proj", "blocks.{}.attention.value.weight",
      "blocks.{}.attention.value.bias");
  add(block + "self_attn.out_proj", "blocks.{}.attention.output.weight",
      "blocks.{}.attention.output.bias");
  add(block + "final_layer_norm", "blocks.{}.mlp_norm.weight", "blocks.{}.mlp_norm.bias");
  add(block + "fc1", "blocks.{}.mlp.up.weight", "blocks.{}.mlp.up.bias");
  add(block + "fc2", "blocks.{}.mlp.down.weight", "blocks.{}.mlp.down.bias");
  add("model.decoder.final_layer_norm", "final_norm.weight", "final_norm.bias");
  rows.push_back({"lm_head.weight", false, {"head.weight"}});
  return rows;
}

}  // namespace

Family opt_family() {
  return {.base = {.model_type = "opt",
                   .norm = NormKind::kLayerNorm,
                   .norm_epsilon = 1e-5F,
                   .position = PositionKind::kLearned,
                   .activation = ActivationKind::kRelu,
                   .gated_mlp = false,
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true,
                   .tied_embeddings = true},
          .has_use_bias_key = true,
          .first_position_row = 2,
          .has_key_value_keys = false,
          .spellings = {{"intermediate_size", "ffn_dim"},
                        {"hidden_act", "activation_function"},
                        {"initializer_range", "init_std"},
                        {"use_bias", "enable_bias"},
                        {"rms_norm_eps", ""}},
          .dropouts = {{"dropout", {&DropoutConfig::residual}},
                       {"attention_dropout", {&DropoutConfig::attention}}},
          .silent = {"activation_dropout"},  // transformers does not drop by it either
          .refused = {{"layerdrop", {"0"}, "dropping whole layers is not in this version"},
                      {"do_layer_norm_before",
                       {"true"},
                       "norms behind the residual additions, which opt-350m has, are not in this "
                       "version"},
                      {"layer_norm_elementwise_affine",
                       {"true"},
                       "norms without weights are not in this version"},
                      {"_remove_final_layer_norm",
                       {"false"},
                       "a model without a last norm is not in this version"}},
          .huggingface_class = "OPTForCausalLM",
          .names = names()};
}

}  // namespace dstrain
