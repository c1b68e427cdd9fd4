// TensorRates: the part of the learning rate that each tensor is trained with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

struct RateScale {
  std::string pattern;  ///< of tensors' names, as a shell reads it: "*.lora_b"
  double scale = 1.0;
  [[nodiscard]] bool covers(const std::string& tensor) const;
  bool operator==(const RateScale&) const = default;
};

struct TensorRates {
  std::vector<RateScale> scales;  ///< optimizer.params.lr_scale: at most one covers a tensor
  double layer_decay = 1.0;       ///< optimizer.params.lr_layer_decay

  /// What the learning rate is multiplied by for a tensor of a model of so many blocks: the scale
  /// that covers it, times layer_decay for each layer above its own (Clark et al. 2020, "ELECTRA",
  /// appendix B). Layers are the embedding, the blocks, and the final norm with the head.
  [[nodiscard]] double of(const std::string& tensor, std::int64_t blocks) const;
  bool operator==(const TensorRates&) const = default;
};

}  // namespace dstrain
