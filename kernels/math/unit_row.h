// A row divided by its length, as PyTorch's normalize() does it: by kShortestRow where it is
// shorter.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

constexpr float kShortestRow = 1e-12F;

/// 1 / max(sqrt(squares), kShortestRow).
DSTRAIN_HD float inverse_length(float squares) {
  const float length = FloatTraits<float>::square_root(squares);
  return 1.0F / (length > kShortestRow ? length : kShortestRow);
}

}  // namespace dstrain
