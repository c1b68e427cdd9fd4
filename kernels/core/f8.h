// The 8-bit floats of Micikevicius et al. 2022, "FP8 formats for deep learning" (table 1), on the
// host. It stands apart from dtype.h, with no function that a compiler could leave out of line,
// because the CPU kernels include it once per instruction set.
//
// A tensor of these represents numbers q · scale, with one f32 scale for all of it.
#pragma once

#include <cstdint>

namespace dstrain {

/// 4 exponent bits, 3 mantissa bits: at most 448, normal from 2⁻⁶, multiples of 2⁻⁹ below. There is
/// no infinity; 0x7f is NaN.
struct F8E4M3 {
  std::uint8_t bits;
};

/// 5 exponent bits, 2 mantissa bits: at most 57344, normal from 2⁻¹⁴, multiples of 2⁻¹⁶ below.
struct F8E5M2 {
  std::uint8_t bits;
};

/// Elements that tensor cores read at once: the dimensions of products are multiples of it.
constexpr std::int64_t kF8Multiple = 16;

template <typename F8>
struct F8Format;
template <>
struct F8Format<F8E4M3> {
  static constexpr int kMantissa = 3;
  static constexpr int kBias = 7;
  static constexpr float kLargest = 448.0F;
  static constexpr std::uint32_t kFirstSpecial = 0x7fU;  ///< that, and what follows: no numbers
};
template <>
struct F8Format<F8E5M2> {
  static constexpr int kMantissa = 2;
  static constexpr int kBias = 15;
  static constexpr float kLargest = 57344.0F;
  static constexpr std::uint32_t kFirstSpecial = 0x7cU;
};

/// A float beside which the hardware rounds to multiples of the smallest subnormal of F8.
template <typename F8>
constexpr std::uint32_t kF8Beside =
    static_cast<std::uint32_t>(127 + 24 - F8Format<F8>::kMantissa - F8Format<F8>::kBias) << 23;

/// x · factor in F8, in the low 8 bits of each element: the nearest, ties to even; beyond the
/// largest number, that number, so that sums stay finite. A value that is not finite becomes NaN,
/// so that a run that diverges is seen to. factor > 0. Float: float or a vector of them; Bits:
/// std::uint32_t likewise.
template <typename F8, typename Bits, typename Float>
[[gnu::always_inline]] inline Bits f8_bits(Float x, float factor) {
  using Format = F8Format<F8>;
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr float kSmallestNormal =
      __builtin_bit_cast(float, static_cast<std::uint32_t>(128 - Format::kBias) << 23);
  const Bits bits = __builtin_bit_cast(Bits, x);
  const Bits sign = (bits >> 24) & 0x80U;
  const Float scaled = __builtin_bit_cast(Float, bits & 0x7fffffffU) * factor;
  const Float absolute = scaled < Format::kLargest ? scaled : Float{} + Format::kLargest;
  const Bits magnitude = __builtin_bit_cast(Bits, absolute);
  const Bits subnormal =
      __builtin_bit_cast(Bits, absolute + __builtin_bit_cast(float, kF8Beside<F8>)) - kF8Beside<F8>;
  constexpr std::uint32_t kBiasDifference = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  const Bits normal =
      (magnitude - kBiasDifference + ((1U << (kShift - 1)) - 1U) + ((magnitude >> kShift) & 1U)) >>
      kShift;
  const Bits number = absolute < kSmallestNormal ? subnormal : normal;
  return sign | ((bits & 0x7fffffffU) < 0x7f800000U ? number : Bits{} + 0x7fU);
}

/// The values of the F8 in the low 8 bits of each element; exact.
template <typename F8, typename Float, typename Bits>
[[gnu::always_inline]] inline Float f8_values(Bits code) {
  using Format = F8Format<F8>;
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr std::uint32_t kBiasDifference = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  const Bits magnitude = code & 0x7fU;
  const Bits sign = (code & 0x80U) << 24;
  const Float subnormal = __builtin_bit_cast(Float, magnitude + kF8Beside<F8>) -
                          __builtin_bit_cast(float, kF8Beside<F8>);
  const Bits normal = (magnitude << kShift) + kBiasDifference;
  const Bits number =
      magnitude < (1U << Format::kMantissa) ? __builtin_bit_cast(Bits, subnormal) : normal;
  // E5M2's infinity is that of a float, and its NaN have mantissa bits.
  const Bits mantissa = magnitude - Format::kFirstSpecial;
  const Bits special =
      Format::kFirstSpecial == 0x7fU ? Bits{} + 0x7fc00000U : (mantissa << kShift) + 0x7f800000U;
  return __builtin_bit_cast(Float, sign | (magnitude < Format::kFirstSpecial ? number : special));
}

[[gnu::always_inline]] inline float to_float(F8E4M3 value) {
  return f8_values<F8E4M3, float>(std::uint32_t{value.bits});
}
[[gnu::always_inline]] inline float to_float(F8E5M2 value) {
  return f8_values<F8E5M2, float>(std::uint32_t{value.bits});
}

}  // namespace dstrain
