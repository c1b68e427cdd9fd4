// Baichuan 1 and 2: LLaMA whose files hold q‖k‖v as one matrix. Those of 7 B rotate and have
// max_position_embeddings in their config.json; in those of 13 B, which have model_max_length
// alone, scores fall with distance (ALiBi). The head of Baichuan 2 counts its rows with length one.
#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

std::vector<ForeignRow> names() {
  std::vector<ForeignRow> rows;
  for (const ForeignRow& row : llama_names()) {
    if (row.theirs.ends_with("q_proj.weight")) {
      rows.push_back({"model.layers.{}.self_attn.W_pack.weight",
                      false,
                      {"blocks.{}.attention.query.weight", "blocks.{}.attention.key.weight",
                       "blocks.{}.attention.value.weight"}});
    } else if (!row.theirs.ends_with("k_proj.weight") && !row.theirs.ends_with("v_proj.weight") &&
               !row.theirs.ends_with(".bias")) {
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

Family baichuan_family() {
  return {.base = {.model_type = "baichuan", .norm_epsilon = 1e-6F},
          .has_key_value_keys = false,
          .has_rope_keys = false,
          .alibi_length_key = "model_max_length",
          .has_unit_head_key = true,
          .dropouts = {},
          .silent = {"_from_model_config", "_flash_attn_2_enabled"},
          .refused = {{"z_loss_weight",
                       {"0"},
                       "a loss of the largest logits beside the cross-entropy is not in this "
                       "version"}},
          .huggingface_class = "BaichuanForCausalLM",
          .names = names()};
}

}  // namespace dstrain
