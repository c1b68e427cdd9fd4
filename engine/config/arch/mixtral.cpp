// Mixtral: Mistral with a mixture of experts in every block. Also the names that experts have in
// Hugging Face's files, for all families of that kind.
#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

/// Puts `instead` where the rows of the feed-forward begin, beside those of dense layers.
std::vector<ForeignRow> with_rows(std::vector<ForeignRow> rows,
                                  const std::vector<ForeignRow>& instead) {
  auto at = rows.begin();
  while (!at->theirs.starts_with("model.layers.{}.mlp.")) {
    ++at;
  }
  rows.insert(at, instead.begin(), instead.end());
  return rows;
}

}  // namespace

std::vector<ForeignRow> with_experts(std::vector<ForeignRow> rows, const ExpertNames& names) {
  const std::string mlp = "model.layers.{}." + names.mlp + ".";
  const std::string expert = mlp + "experts.{}.";
  return with_rows(
      std::move(rows),
      {{mlp + "gate.weight", false, {"blocks.{}.mlp.router.weight"}},
       {expert + names.gate + ".weight", false, {"blocks.{}.mlp.experts.{}.gate.weight"}},
       {expert + names.up + ".weight", false, {"blocks.{}.mlp.experts.{}.up.weight"}},
       {expert + names.down + ".weight", false, {"blocks.{}.mlp.experts.{}.down.weight"}}});
}

std::vector<ForeignRow> with_held_experts(std::vector<ForeignRow> rows) {
  const std::string mlp = "model.layers.{}.mlp.";
  return with_rows(
      std::move(rows),
      {{mlp + "gate.weight", false, {"blocks.{}.mlp.router.weight"}},
       {mlp + "experts.gate_up_proj",
        false,
        {"blocks.{}.mlp.experts.{}.gate.weight", "blocks.{}.mlp.experts.{}.up.weight"}},
       {mlp + "experts.down_proj", false, {"blocks.{}.mlp.experts.{}.down.weight"}}});
}

Family mixtral_family() {
  return {.base = {.model_type = "mixtral",
                   .norm_epsilon = 1e-5F,
                   .rope_theta = 1000000.0,
                   .experts = {.count = 8,
                               .per_token = 2,
                               .normalised = true,
                               .balance_coefficient = 0.001F}},
          .needs_key_value_heads = true,
          .window = WindowKeys::kSize,
          .default_window = std::nullopt,
          .second_spellings = {{"num_local_experts", "num_experts"}},
          .refused = {{"router_jitter_noise",
                       {"0", "0.0"},
                       "noise on what the router reads is not in this version"}},
          .huggingface_class = "MixtralForCausalLM",
          .names = with_experts(llama_names(), {"block_sparse_moe", "w1", "w3", "w2"}),
          .held_names = with_held_experts(llama_names())};
}

}  // namespace dstrain
