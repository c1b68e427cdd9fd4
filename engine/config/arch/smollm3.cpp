// SmolLM3: LLaMA without positions in every fourth layer.
#include "engine/config/arch/family.h"

namespace dstrain {

Family smollm3_family() {
  return {.base = {.model_type = "smollm3",
                   .norm_epsilon = 1e-6F,
                   .rope_theta = 2000000.0,
                   .tied_embeddings = true},
          .has_attention_bias_key = true,
          .has_mlp_bias_key = true,
          .needs_key_value_heads = true,
          .window = WindowKeys::kSwitchedByLayer,
          .default_window = std::nullopt,
          .unrotated_layer_every = 4,
          .silent = {"max_window_layers"},
          .huggingface_class = "SmolLM3ForCausalLM",
          .names = llama_names()};
}

}  // namespace dstrain
