// Qwen2: LLaMA with biases of queries, keys and values, and a window in its later layers only.
#include "engine/config/arch/family.h"

namespace dstrain {

Family qwen2_family() {
  return {.base = {.model_type = "qwen2", .norm_epsilon = 1e-6F, .qkv_bias = true},
          .needs_key_value_heads = true,
          .window = WindowKeys::kSwitched,
          .default_first_window_layer = 28,
          .refused = {{"use_mrope",
                       {"false"},
                       "positions in images and videos are not in this version"}},
          .huggingface_class = "Qwen2ForCausalLM",
          .names = llama_names()};
}

}  // namespace dstrain
