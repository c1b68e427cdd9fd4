// gpt-oss: every other block looks back over a window; each head has a score that no position has
// (a sink); experts, whose router and matrices have biases, limit what their gates let through.
#include <cmath>

#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

/// Its experts' matrices are [in, out], those of all experts in one, gates' columns between ups'.
std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows = llama_names();
  const std::string mlp = "model.layers.{}.mlp.";
  std::erase_if(rows, [&](const ForeignRow& row) { return row.theirs.starts_with(mlp); });
  const std::vector<ForeignRow> own = {
      {"model.layers.{}.self_attn.sinks", false, {"blocks.{}.attention.sinks"}},
      {mlp + "router.weight", false, {"blocks.{}.mlp.router.weight"}},
      {mlp + "router.bias", false, {"blocks.{}.mlp.router.bias"}},
      {.theirs = mlp + "experts.gate_up_proj",
       .transposed = true,
       .ours = {"blocks.{}.mlp.experts.{}.gate.weight", "blocks.{}.mlp.experts.{}.up.weight"},
       .by_rows = true},
      {.theirs = mlp + "experts.gate_up_proj_bias",
       .ours = {"blocks.{}.mlp.experts.{}.gate.bias", "blocks.{}.mlp.experts.{}.up.bias"},
       .by_rows = true},
      {mlp + "experts.down_proj", true, {"blocks.{}.mlp.experts.{}.down.weight"}},
      {mlp + "experts.down_proj_bias", false, {"blocks.{}.mlp.experts.{}.down.bias"}}};
  rows.insert(rows.end() - 2, own.begin(), own.end());  // before the final norm and the head
  return rows;
}

}  // namespace

Family gpt_oss_family() {
  constexpr double kStretch = 32.0;
  return {.base = {.model_type = "gpt_oss",
                   .head_dim = 64,
                   .norm_epsilon = 1e-5F,
                   .rope_theta = 150000.0,
                   .rope_scaling = {.kind = RopeScalingKind::kYarn,
                                    .factor = kStretch,
                                    .original_max_positions = 4096,
                                    .whole_pairs = false,
                                    .attention_factor = 0.1 * std::log(kStretch) + 1.0},
                   .feed_forward_limit = 7.0F,
                   .experts = {.count = 128,
                               .per_token = 4,
                               .normalised = true,
                               .router_bias = true,
                               .balance_coefficient = 0.001F},
                   .qkv_bias = true,
                   .attention_output_bias = true,
                   .mlp_bias = true},
          .has_attention_bias_key = true,
          .needs_key_value_heads = true,
          .window = WindowKeys::kByLayer,
          .default_window = 128,
          .full_layer_every = 2,
          .reads_mxfp4 = true,
          .has_sinks = true,
          .second_spellings = {{"num_local_experts", "num_experts"}},
          .silent = {"experts_per_token", "initial_context_length"},
          .refused = {{"swiglu_alpha", {"1.702"}, "experts' gates are steeper by 1.702 here"}},
          .huggingface_class = "GptOssForCausalLM",
          .names = names()};
}

}  // namespace dstrain
