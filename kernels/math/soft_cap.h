// Soft caps (Gemma 2, 2024, §2): cap · tanh(x / cap), close to x where x is small, never beyond the
// cap. F: float, or a vector of floats (vector_math.h).
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

template <typename F>
DSTRAIN_HD F soft_cap(F x, float cap) {
  return fast_tanh(x * (1.0F / cap)) * cap;
}

/// Its derivative, from its value.
template <typename F>
DSTRAIN_HD F soft_cap_slope(F value, float cap) {
  const F bent = value * (1.0F / cap);
  return 1.0F - bent * bent;
}

}  // namespace dstrain
