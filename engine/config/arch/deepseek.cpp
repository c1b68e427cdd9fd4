// DeepSeek-V2: keys and values of all heads from one latent of a token (multi-head latent
// attention), and from a layer on experts beside a feed-forward for every token, chosen among the
// best groups. DeepSeek-V3 chooses by sigmoids with a bias that the experts' load moves.
#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows = llama_names();
  const std::string attention = "model.layers.{}.self_attn.";
  const std::string mlp = "model.layers.{}.mlp.shared_experts.";
  const std::vector<ForeignRow> own = {
      {attention + "q_a_proj.weight", false, {"blocks.{}.attention.query_down.weight"}},
      {attention + "q_a_layernorm.weight", false, {"blocks.{}.attention.query_latent_norm.weight"}},
      {attention + "q_b_proj.weight", false, {"blocks.{}.attention.query_up.weight"}},
      {attention + "kv_a_proj_with_mqa.weight", false, {"blocks.{}.attention.latent_down.weight"}},
      {attention + "kv_a_layernorm.weight", false, {"blocks.{}.attention.latent_norm.weight"}},
      {attention + "kv_b_proj.weight", false, {"blocks.{}.attention.latent_up.weight"}},
      {mlp + "gate_proj.weight", false, {"blocks.{}.mlp.shared.gate.weight"}},
      {mlp + "up_proj.weight", false, {"blocks.{}.mlp.shared.up.weight"}},
      {mlp + "down_proj.weight", false, {"blocks.{}.mlp.shared.down.weight"}}};
  rows.insert(rows.end() - 2, own.begin(), own.end());  // before the final norm and the head
  return rows;
}

std::vector<ForeignRow> with_balancing_bias(std::vector<ForeignRow> rows) {
  rows.insert(rows.end() - 2, {"model.layers.{}.mlp.gate.e_score_correction_bias",
                               false,
                               {"blocks.{}.mlp.balancing_bias"}});
  return rows;
}

}  // namespace

Family deepseek_v2_family() {
  return {
      .base = {.model_type = "deepseek_v2",
               .norm_epsilon = 1e-6F,
               .experts = {.count = 64, .per_token = 6},
               .expert_width = 1407,
               .latent = {.latent_rank = 512,
                          .query_rank = 1536,
                          .plain_dim = 128,
                          .rotated_dim = 64,
                          .value_dim = 128}},
      .has_key_value_keys = false,
      .spellings = {{"num_local_experts", "n_routed_experts"}},
      .has_shared_expert_keys = true,
      .silent = {"num_key_value_heads", "head_dim", "qk_head_dim", "ep_size", "aux_loss_alpha",
                 "seq_aux"},
      .refused = {{"norm_topk_prob", {"false"}, "experts' weights are their shares of all here"},
                  {"scoring_func", {"\"softmax\""}, "experts are chosen by a softmax here"},
                  {"moe_layer_freq", {"1"}, "all layers behind the dense ones have experts here"}},
      .huggingface_class = "DeepseekV2ForCausalLM",
      .names = with_experts(names()),
      .held_names = with_held_experts(names())};
}

Family deepseek_v3_family() {
  Family family = deepseek_v2_family();
  family.base.model_type = "deepseek_v3";
  family.base.experts = {.count = 256,
                         .per_token = 8,
                         .score = RouterScore::kSigmoid,
                         .normalised = true,
                         .scale = 2.5F,
                         .groups = 8,
                         .chosen_groups = 4,
                         .group_score = GroupScore::kTwoLargest,
                         .balancing_bias = true,
                         .bias_update_rate = 1e-3F};
  family.base.expert_width = 2048;
  family.has_normalised_key = true;
  family.default_shared_experts = 1;
  family.default_dense_layers = 3;
  family.leaves_out_next_layer = true;
  family.silent.insert(family.silent.end(), {"num_nextn_predict_layers", "num_mtp_layers"});
  family.refused = {
      {"topk_method", {"\"noaux_tc\""}, "experts are chosen with a balancing bias here"},
      {"scoring_func", {"\"sigmoid\""}, "experts are chosen by sigmoids here"},
      {"rope_interleave", {"true"}, "numbers that rotate together are neighbours here"},
      {"moe_layer_freq", {"1"}, "all layers behind the dense ones have experts here"}};
  family.huggingface_class = "DeepseekV3ForCausalLM";
  family.names = with_balancing_bias(family.names);
  family.held_names = with_balancing_bias(family.held_names);
  return family;
}

}  // namespace dstrain
