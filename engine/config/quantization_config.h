// QuantizationConfig: "quantization_config", with the names of transformers' BitsAndBytesConfig.
#pragma once

#include <string>

namespace dstrain {

/// The matrices of the blocks' linear layers, which are not trained, lie in few bits a number.
struct QuantizationConfig {
  bool in_4_bits = false;  ///< "load_in_4bit": QLoRA; kernels/math/nf4_code.h
  bool in_8_bits = false;  ///< "load_in_8bit": kernels/math/int8_code.h
  /// "bnb_4bit_compute_dtype": what the run computes in, if it says so.
  std::string compute_dtype{};

  [[nodiscard]] bool enabled() const { return in_4_bits || in_8_bits; }
  bool operator==(const QuantizationConfig&) const = default;
};

}  // namespace dstrain
