// exp, tanh and square root for F = float or a vector of floats: short branch-free formulas, so
// that one text serves a scalar, a vector register and (F = float) a CUDA thread.
// FloatTraits says what F needs beside + - * / < ?: ; a vector type specialises it.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

template <typename F>
struct FloatTraits;

template <>
struct FloatTraits<float> {
  using Bits = std::uint32_t;
  DSTRAIN_HD static float square_root(float x) { return __builtin_sqrtf(x); }
};

/// exp(x) within 2 units in the last place for x in [-87.3, 88.3]; clamped outside.
/// x = n ln2 + r, |r| ≤ ln2/2 (Cody & Waite reduction); exp(r) by a minimax polynomial of degree
/// 7; 2ⁿ by building the exponent bits. NaN gives NaN.
template <typename F>
DSTRAIN_HD F fast_exp(F x) {
  using Bits = typename FloatTraits<F>::Bits;
  constexpr float kLog2E = 1.4426950408889634F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  // Adding 1.5·2²³ rounds to the nearest integer in the default rounding mode, and leaves that
  // integer in the low bits of the sum.
  constexpr float kRounder = 12582912.0F;
  const F above = x < -87.3F ? -87.3F : x;
  const F clamped = above > 88.3F ? 88.3F : above;
  const F shifted = clamped * kLog2E + kRounder;
  const F n = shifted - kRounder;
  const F r = (clamped - n * kLn2High) - n * kLn2Low;
  F p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Bits power = (__builtin_bit_cast(Bits, shifted) << 23) + 0x3f800000U;
  return p * __builtin_bit_cast(F, power);
}

/// tanh(x) = 1 - 2 / (exp(2x) + 1), absolute error below 2e-7.
template <typename F>
DSTRAIN_HD F fast_tanh(F x) {
  return 1.0F - 2.0F / (fast_exp(2.0F * x) + 1.0F);
}

}  // namespace dstrain
