// F16 on the host: IEEE 754 binary16. It stands apart from dtype.h, with no function that a
// compiler could leave out of line, because the CPU kernels include it once per instruction set.
//
// The formulas serve a float, or a vector of floats, on processors without conversion
// instructions, and give what those instructions give, bit for bit. They hold in the default
// rounding mode.
#pragma once

#include <cstdint>

namespace dstrain {

/// 5 exponent bits, 10 mantissa bits: at most 65504, normal from 2⁻¹⁴, multiples of 2⁻²⁴ below.
struct F16 {
  std::uint16_t bits;
};

/// The values of halves that lie in the low 16 bits of each element; exact. Float: float or a
/// vector of them; Bits: std::uint32_t likewise. A signalling NaN becomes quiet.
template <typename Float, typename Bits>
[[gnu::always_inline]] inline Float f16_values(Bits half) {
  constexpr std::uint32_t kBiasDifference = (127U - 15U) << 23;
  const Bits magnitude = half & 0x7fffU;
  const Bits sign = (half & 0x8000U) << 16;
  // 0.5 is a multiple of 2⁻²⁴ and so are its neighbours: the subnormal's bits count those steps.
  const Float subnormal = __builtin_bit_cast(Float, magnitude + 0x3f000000U) - 0.5F;
  const Bits normal = (magnitude << 13) + kBiasDifference;
  const Bits infinity_or_nan =
      (normal + kBiasDifference) | (magnitude > 0x7c00U ? Bits{} + 0x400000U : Bits{});
  const Bits not_subnormal = magnitude < 0x7c00U ? normal : infinity_or_nan;
  return __builtin_bit_cast(
      Float, sign | (magnitude < 0x400U ? __builtin_bit_cast(Bits, subnormal) : not_subnormal));
}

/// The halves nearest to the values, ties to even, in the low 16 bits of each element: from 65520
/// on infinity, down to 2⁻²⁵ zero. NaN stays NaN, and becomes quiet.
template <typename Bits, typename Float>
[[gnu::always_inline]] inline Bits f16_bits(Float value) {
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits magnitude = bits & 0x7fffffffU;
  const Bits sign = (bits >> 16) & 0x8000U;
  const Float absolute = __builtin_bit_cast(Float, magnitude);
  // Beside 0.5 the hardware itself rounds to multiples of 2⁻²⁴.
  const Bits subnormal = __builtin_bit_cast(Bits, absolute + 0.5F) - 0x3f000000U;
  // 65536 has the bits that become infinity's; rounding up from 65504 ends there as well.
  const Bits limited = absolute < 65536.0F ? magnitude : Bits{} + 0x47800000U;
  const Bits normal = (limited - 0x38000000U + 0xfffU + ((limited >> 13) & 1U)) >> 13;
  const Bits number = absolute < 0x1p-14F ? subnormal : normal;
  const Bits quiet_nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  return sign | (value != value ? quiet_nan : number);
}

[[gnu::always_inline]] inline float to_float(F16 value) {
  return f16_values<float>(std::uint32_t{value.bits});
}

/// Rounds to nearest, ties to even, also among subnormals; overflow gives infinity.
[[gnu::always_inline]] inline F16 to_f16(float value) {
  return F16{static_cast<std::uint16_t>(f16_bits<std::uint32_t>(value))};
}

}  // namespace dstrain
