// exp and tanh as short branch-free polynomials, so that a compiler can turn a loop over them
// into vector instructions. On a device the hardware's own are used.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

/// exp(x) within 2 units in the last place for x in [-87.3, 88.7]; clamped outside.
/// x = n ln2 + r, |r| ≤ ln2/2 (Cody & Waite reduction); exp(r) by a degree-6 Taylor-like
/// minimax polynomial; 2ⁿ by building the exponent bits.
DSTRAIN_HD float fast_exp(float x) {
#ifdef __CUDA_ARCH__
  return __expf(x);
#else
  constexpr float kLog2E = 1.4426950408889634F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  const float clamped = x < -87.3F ? -87.3F : (x > 88.3F ? 88.3F : x);
  // Adding and subtracting 1.5·2²³ rounds to the nearest integer in the default rounding mode.
  const float shifted = clamped * kLog2E + 12582912.0F;
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto exponent = static_cast<std::int32_t>(n) + 127;
  return p * std::bit_cast<float>(exponent << 23);
#endif
}

/// tanh(x) = 1 - 2 / (exp(2x) + 1), absolute error below 2e-7.
DSTRAIN_HD float fast_tanh(float x) {
#ifdef __CUDA_ARCH__
  return tanhf(x);
#else
  return 1.0F - 2.0F / (fast_exp(2.0F * x) + 1.0F);
#endif
}

}  // namespace dstrain
