// The keys of GPT-2's config.json.
#include "engine/config/family_keys.h"

namespace dstrain {
namespace {

Key for_gpt2(Key key) {
  return for_families(std::move(key), is_gpt2);
}

}  // namespace

std::vector<Key> gpt2_keys() {
  return {
      for_gpt2(also_called(
          model_size("n_embd", &ModelSpec::hidden_size, "the model's width, for example 768"),
          {"model.hidden_size"})),
      for_gpt2(also_called(model_size("n_layer", &ModelSpec::num_layers,
                                      "the number of blocks, for example 12", kMostLayers),
                           {"model.num_hidden_layers"})),
      for_gpt2(also_called(model_size("n_head", &ModelSpec::num_heads,
                                      "the number of attention heads, for example 12"),
                           {"model.num_attention_heads"})),
      for_gpt2(also_called(model_size("n_positions", &ModelSpec::max_positions,
                                      "the longest sequence, for example 1024"),
                           {"model.max_position_embeddings"})),
      for_gpt2(derived_size("n_inner", &ModelSpec::intermediate_size)),
      for_gpt2(kModel.field("layer_norm_epsilon", above(0), &ModelSpec::norm_epsilon)),
      for_gpt2(activation_key("model.activation_function")),
      for_gpt2(refused("model.scale_attn_weights", {"true"},
                       "scores are always divided by the square root of the head's size")),
      for_gpt2(refused("model.scale_attn_by_inverse_layer_idx", {"false"},
                       "scaling attention by the layer's number is not in this version yet")),
      for_gpt2(
          refused("model.add_cross_attention", {"false"}, "dstrain's models are decoder-only")),
      for_gpt2(silent("model.reorder_and_upcast_attn")),
      for_gpt2(silent("model.n_ctx")),
      for_gpt2(silent("model.output_past")),
      for_gpt2(silent("model.predict_special_tokens")),
      for_gpt2(silent("model.summary_type")),
      for_gpt2(silent("model.summary_use_proj")),
      for_gpt2(silent("model.summary_activation")),
      for_gpt2(silent("model.summary_proj_to_labels")),
      for_gpt2(silent("model.summary_first_dropout")),
  };
}

}  // namespace dstrain
