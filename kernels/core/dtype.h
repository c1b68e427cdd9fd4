// Element types a tensor may hold, and bf16 on the host.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "kernels/core/check.h"

namespace dstrain {

enum class DType : std::uint8_t { kF32, kBF16, kF64, kI32, kU8 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

/// The upper half of an IEEE float: 8 exponent bits, 7 mantissa bits.
struct BF16 {
  std::uint16_t bits = 0;
};

[[gnu::always_inline]] inline float to_float(float value) { return value; }

[[gnu::always_inline]] inline float to_float(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline BF16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return BF16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

/// The DType of a host type.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace dstrain
