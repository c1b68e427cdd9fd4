// QuantizationConfig: "quantization_config", with the names of transformers' BitsAndBytesConfig.
#pragma once

#include <string>

namespace dstrain {

struct QuantizationConfig {
  /// "load_in_4bit": the matrices of the blocks' linear layers, which are not trained, lie in 4
  /// bits a number (QLoRA; kernels/math/nf4_code.h).
  bool in_4_bits = false;
  /// "bnb_4bit_compute_dtype": what the run computes in, if it says so.
  std::string compute_dtype{};
  bool operator==(const QuantizationConfig&) const = default;
};

}  // namespace dstrain
