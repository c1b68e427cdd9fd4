// LogitGradient: the factors that the gradient of a loss by its logits is multiplied by.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct LogitGradient {
  float scale;
  /// Where soft_cap has made the logits, the gradient is the one by soft_cap's input: also times 1
  /// - (logit / cap)². 0: the logits are as they were computed.
  float cap = 0.0F;
  /// f32 [N] in the device's memory: a further factor of each token's. nullptr: 1.
  const float* weights = nullptr;

  [[nodiscard]] DSTRAIN_HD float scale_of(std::int64_t token) const {
    return weights == nullptr ? scale : scale * weights[token];
  }
};

}  // namespace dstrain
