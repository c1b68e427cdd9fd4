// Element types a tensor may hold.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/core/bf16.h"
#include "kernels/core/check.h"
#include "kernels/core/f16.h"
#include "kernels/core/f8.h"

namespace dstrain {

enum class DType : std::uint8_t { kF32, kBF16, kF64, kI32, kU8, kF16, kF8E4M3, kF8E5M2 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
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
    case DType::kF16:
      return "f16";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
  }
  return "?";
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
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<F8E4M3> {
  static constexpr DType value = DType::kF8E4M3;
};
template <>
struct DTypeOf<F8E5M2> {
  static constexpr DType value = DType::kF8E5M2;
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
