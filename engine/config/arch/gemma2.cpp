// Gemma 2 and 3: every branch stands between two RMS norms whose weights count from one, embeddings
// are scaled up, the feed-forward is gated with GELU. Gemma 2 caps scores and logits; Gemma 3
// normalises each head of queries and keys instead, and layers with a window rotate faster.
#include "engine/config/arch/family.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows;
  const auto add = [&](const std::string& theirs, const char* ours) {
    rows.push_back({theirs, false, {ours}});
  };
  for (ForeignRow& row : llama_names()) {
    const bool is_mlp_norm = row.theirs.ends_with("post_attention_layernorm.weight");
    if (is_mlp_norm) {
      row.ours = {"blocks.{}.attention_result_norm.weight"};
    } else if (row.theirs == "model.norm.weight") {
      add("model.layers.{}.post_feedforward_layernorm.weight", "blocks.{}.mlp_result_norm.weight");
    }
    rows.push_back(row);
    if (is_mlp_norm) {
      add("model.layers.{}.pre_feedforward_layernorm.weight", "blocks.{}.mlp_norm.weight");
    }
  }
  return rows;
}

}  // namespace

Family gemma2_family() {
  return {.base = {.model_type = "gemma2",
                   .head_dim = 256,
                   .norm = NormKind::kRmsNormFromOne,
                   .norm_epsilon = 1e-6F,
                   .attention_cap = 50.0F,
                   .logit_cap = 30.0F,
                   .query_scalar = 256.0,
                   .activation = ActivationKind::kGeluTanh,
                   .tied_embeddings = true},
          .norm_placement = NormPlacement::kAroundBranch,
          .has_attention_bias_key = true,
          .needs_key_value_heads = true,
          .window = WindowKeys::kByLayer,
          .full_layer_every = 2,
          .has_cap_keys = true,
          .scales_embeddings = true,
          .spellings = {{"hidden_act", "hidden_activation"}},
          // The first models' files also have hidden_act; hidden_activation is the one that counts.
          .silent = {"hidden_act", "cache_implementation"},
          .refused = {{"use_bidirectional_attention",
                       {"false"},
                       "queries that see later positions are not in this version"}},
          .huggingface_class = "Gemma2ForCausalLM",
          .names = names()};
}

Family gemma3_text_family() {
  Family family = gemma2_family();
  family.base.model_type = "gemma3_text";
  family.base.rope_theta = 1000000.0;
  family.base.window_rope_theta = 10000.0;
  family.base.attention_cap = 0.0F;
  family.base.logit_cap = 0.0F;
  family.query_key_norm = QueryKeyNorm::kPerHead;
  family.full_layer_every = 6;
  family.has_window_pattern_key = true;
  family.scales_full_layers_only = true;
  family.refused.push_back({"attn_logit_softcapping",
                            {},
                            "Gemma 3 has no cap of scores, and transformers ignores this one"});
  family.silent.emplace_back("_sliding_window_pattern");  // layer_types stand beside it
  family.huggingface_class = "Gemma3ForCausalLM";
  family.names = with_query_key_norms(std::move(family.names));
  return family;
}

}  // namespace dstrain
