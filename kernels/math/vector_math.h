// exp, tanh, the normal distribution and square root for F = float or a vector of floats: short
// branch-free formulas, so that one text serves a scalar, a vector register and (F = float) a CUDA
// thread. FloatTraits has what F needs beside + - * ; a vector type specialises it.
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
  DSTRAIN_HD static float reciprocal(float x) { return 1.0F / x; }
  /// The larger and the smaller one; b where either is NaN.
  DSTRAIN_HD static float larger(float a, float b) { return a > b ? a : b; }
  DSTRAIN_HD static float smaller(float a, float b) { return a < b ? a : b; }
  /// x where a ≤ b, else 0.
  DSTRAIN_HD static float if_at_most(float a, float b, float x) { return a <= b ? x : 0.0F; }
};

/// For references.
template <>
struct FloatTraits<double> {
  DSTRAIN_HD static double reciprocal(double x) { return 1.0 / x; }
  DSTRAIN_HD static double larger(double a, double b) { return a > b ? a : b; }
  DSTRAIN_HD static double smaller(double a, double b) { return a < b ? a : b; }
  DSTRAIN_HD static double if_at_most(double a, double b, double x) { return a <= b ? x : 0.0; }
};

/// Adding 1.5·2²³ rounds to the nearest integer in the default rounding mode, and leaves that
/// integer in the low bits of the sum.
constexpr float kRounder = 12582912.0F;

/// p · 2ⁿ, n being in the low bits of `shifted` (above) and p · 2ⁿ a normal number: n is added to
/// the exponent. NaN stays NaN, unless it is one with a payload in its last nine bits.
template <typename F>
DSTRAIN_HD F times_power_of_two(F p, F shifted) {
  using Bits = typename FloatTraits<F>::Bits;
  return __builtin_bit_cast(
      F, __builtin_bit_cast(Bits, p) + (__builtin_bit_cast(Bits, shifted) << 23));
}

/// exp(x) within 2 units in the last place for x in [-87.3, 88.3]; clamped outside. NaN gives NaN.
/// x = n ln2 + r, |r| ≤ ln2/2 (Cody & Waite reduction); exp(r) by the polynomial of degree 6 with
/// the least largest relative error (3e-9) among those that begin with 1 + r.
template <typename F>
DSTRAIN_HD F fast_exp(F x) {
  constexpr float kLog2E = 1.4426950408889634F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  using Traits = FloatTraits<F>;
  const F clamped = Traits::smaller(F{} + 88.3F, Traits::larger(F{} - 87.3F, x));
  const F shifted = clamped * kLog2E + kRounder;
  const F n = shifted - kRounder;
  const F r = (clamped - n * kLn2High) - n * kLn2Low;
  F p = r * 1.381461326e-3F + 8.368709824e-3F;
  p = p * r + 4.166838736e-2F;
  p = p * r + 1.666652069e-1F;
  p = p * r + 4.999999345e-1F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return times_power_of_two(p, shifted);
}

/// 2ˣ within 2e-7 relative for x in [-126, 127]; clamped below. Fewer steps than fast_exp: for
/// probabilities, where the exponent comes in units of log 2 anyway.
template <typename F>
DSTRAIN_HD F fast_exp2(F x) {
  const F clamped = FloatTraits<F>::larger(F{} - 126.0F, x);
  const F shifted = clamped + kRounder;
  const F r = clamped - (shifted - kRounder);
  F p = r * 1.327647217e-3F + 9.675541331e-3F;
  p = p * r + 5.550713273e-2F;
  p = p * r + 2.402211972e-1F;
  p = p * r + 6.931469671e-1F;
  p = p * r + 1.000000072F;
  return times_power_of_two(p, shifted);
}

/// 1 / (1 + exp(-x)).
template <typename F>
DSTRAIN_HD F sigmoid(F x) {
  return FloatTraits<F>::reciprocal(1.0F + fast_exp(-x));
}
/// As exact as a double can be, for references.
DSTRAIN_HD double sigmoid(double x) {
  return 1.0 / (1.0 + __builtin_exp(-x));
}

/// tanh(x) = 1 - 2 / (exp(2x) + 1), absolute error below 2e-7.
template <typename F>
DSTRAIN_HD F fast_tanh(F x) {
  return 1.0F - 2.0F * FloatTraits<F>::reciprocal(fast_exp(2.0F * x) + 1.0F);
}

/// exp(-z²/2) / sqrt(2π).
template <typename F>
DSTRAIN_HD F normal_density(F z) {
  return 0.3989422804F * fast_exp(-0.5F * z * z);
}
DSTRAIN_HD double normal_density(double z) {
  return 0.39894228040143268 * __builtin_exp(-0.5 * z * z);
}

/// The probability of more than z ≥ 0 under the normal distribution, absolute error below 3e-7:
/// exp(-z²/2) times a polynomial in t = 1 / (1 + 0.3 z) without a constant, whose relative error on
/// z ≤ 13 (1.2e-7) is the least of its degree.
template <typename F>
DSTRAIN_HD F normal_tail(F z) {
  const F t = FloatTraits<F>::reciprocal(1.0F + 0.3F * z);
  F p = t * 3.608885836e-2F - 1.589338129e-1F;
  p = p * t + 2.093465339e-1F;
  p = p * t - 5.645022868e-2F;
  p = p * t + 1.300326887e-1F;
  p = p * t + 9.946504246e-2F;
  p = p * t + 1.208263181e-1F;
  p = p * t + 1.196245407e-1F;
  return p * t * fast_exp(-0.5F * z * z);
}
DSTRAIN_HD double normal_tail(double z) {
  return 0.5 * __builtin_erfc(z * 0.70710678118654752);
}

}  // namespace dstrain
