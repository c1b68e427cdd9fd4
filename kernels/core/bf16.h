// BF16 on the host: the upper half of an IEEE float. It stands apart from dtype.h, with no function
// that a compiler could leave out of line, because the CPU kernels include it once per instruction
// set.
#pragma once

#include <cstdint>

namespace dstrain {

/// 8 exponent bits, 7 mantissa bits.
struct BF16 {
  std::uint16_t bits;
};

[[gnu::always_inline]] inline float to_float(float value) {
  return value;
}

[[gnu::always_inline]] inline float to_float(BF16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline BF16 to_bf16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return BF16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

}  // namespace dstrain
