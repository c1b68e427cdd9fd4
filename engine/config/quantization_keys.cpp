// "quantization_config": weights that are not trained in few bits, with the names of transformers'
// BitsAndBytesConfig, whose JSON may be pasted there.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kQuantization{"quantization_config.", &Config::quantization};

/// A key that is shown where weights are coded.
template <typename Member>
Key where_coded(const char* name, Member QuantizationConfig::*member) {
  Key key = null_is_default(kQuantization.field(name, {}, member));
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.quantization.enabled() ? get(config) : std::string();
  };
  return key;
}

}  // namespace

std::vector<Key> quantization_keys() {
  std::vector<Key> keys = {
      where_coded("load_in_4bit", &QuantizationConfig::in_4_bits),
      where_coded("load_in_8bit", &QuantizationConfig::in_8_bits),
      where_coded("bnb_4bit_compute_dtype", &QuantizationConfig::compute_dtype),
      refused("quantization_config.quant_method", {"\"bitsandbytes\""},
              "weights are coded as bitsandbytes does: write \"bitsandbytes\""),
      refused("quantization_config.bnb_4bit_quant_type", {"\"nf4\""},
              "4 bits are NF4's: write \"nf4\""),
      refused("quantization_config.bnb_4bit_use_double_quant", {"true"},
              "the scales of blocks are always coded in turn: write true"),
      refused("quantization_config.llm_int8_skip_modules", {"[]"},
              "all linear layers of the blocks are coded, and nothing else: leave it out"),
  };
  for (const char* const name :
       {"_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_storage", "llm_int8_threshold",
        "llm_int8_has_fp16_weight", "llm_int8_enable_fp32_cpu_offload"}) {
    keys.push_back(silent(std::string("quantization_config.") + name));
  }
  return keys;
}

}  // namespace dstrain
