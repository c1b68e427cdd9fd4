// OLMo 3: OLMo 2 with a window in three layers of four, whose rotation is never stretched.
#include "engine/config/arch/family.h"

namespace dstrain {

Family olmo3_family() {
  Family family = olmo2_family();
  family.base.model_type = "olmo3";
  family.base.rope_theta = 500000.0;
  family.window = WindowKeys::kByLayer;
  family.full_layer_every = 4;
  family.scales_full_layers_only = true;
  family.huggingface_class = "Olmo3ForCausalLM";
  return family;
}

}  // namespace dstrain
