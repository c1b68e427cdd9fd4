// OLMo 2: the norms of a block stand behind its two halves, and all heads of queries, and of keys,
// are normalised together.
#include <utility>

#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows;
  for (ForeignRow& row : llama_names()) {
    if (row.theirs.ends_with("input_layernorm.weight")) {
      continue;
    }
    if (row.theirs.ends_with("post_attention_layernorm.weight")) {
      row.ours = {"blocks.{}.attention_norm.weight"};
    }
    rows.push_back(row);
  }
  rows = with_query_key_norms(std::move(rows));
  rows.insert(
      rows.end() - 2,  // before the final norm and the head
      {"model.layers.{}.post_feedforward_layernorm.weight", false, {"blocks.{}.mlp_norm.weight"}});
  return rows;
}

}  // namespace

Family olmo2_family() {
  return {.base = {.model_type = "olmo2", .norm_epsilon = 1e-5F},
          .norm_placement = NormPlacement::kAfterBranch,
          .query_key_norm = QueryKeyNorm::kFullWidth,
          .has_attention_bias_key = true,
          .huggingface_class = "Olmo2ForCausalLM",
          .names = names()};
}

}  // namespace dstrain
