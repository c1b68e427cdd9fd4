// binary16 (kernels/core/f16.h) against IEEE 754-2008, section 3.4, spelled out in double
// precision.
#include <bit>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/core/dtype.h"

namespace dstrain {
namespace {

/// (-1)^sign · 2^(exponent - 15) · 1.mantissa, or · 2^-14 · 0.mantissa.
double value_of(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else if (exponent == 31) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

F16 half(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

}  // namespace

TEST_CASE("each of the 65536 halves widens to its value and narrows to itself", "[kernels][f16]") {
  std::int64_t wrong_values = 0;
  std::int64_t wrong_halves = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = value_of(half(bits).bits);
    const float widened = to_float(half(bits));
    const bool is_nan = std::isnan(expected);
    const bool right = is_nan
                           ? std::isnan(widened)
                           : widened == expected && std::signbit(widened) == std::signbit(expected);
    wrong_values += right ? 0 : 1;
    const std::uint32_t quiet = is_nan ? bits | 0x200U : bits;  // a signalling NaN is made quiet
    wrong_halves += to_f16(widened).bits == quiet ? 0 : 1;
  }
  CHECK(wrong_values == 0);
  CHECK(wrong_halves == 0);
}

TEST_CASE("to_f16 goes to the nearest half, ties to even, between every two halves",
          "[kernels][f16]") {
  std::int64_t wrong = 0;
  // The last `above` is infinity, in the place of 65536.
  for (std::uint32_t below = 0; below < 0x7c00; ++below) {
    const std::uint32_t above = below + 1;
    const double upper = above == 0x7c00 ? 65536.0 : value_of(half(above).bits);
    const auto middle = static_cast<float>((value_of(half(below).bits) + upper) / 2);
    const std::uint32_t even = below % 2 == 0 ? below : above;
    wrong += to_f16(middle).bits == even ? 0 : 1;
    wrong += to_f16(std::nextafter(middle, 0.0F)).bits == below ? 0 : 1;
    wrong += to_f16(std::nextafter(middle, INFINITY)).bits == above ? 0 : 1;
    wrong += to_f16(-middle).bits == (even | 0x8000U) ? 0 : 1;
    wrong += to_f16(-std::nextafter(middle, 0.0F)).bits == (below | 0x8000U) ? 0 : 1;
    wrong += to_f16(-std::nextafter(middle, INFINITY)).bits == (above | 0x8000U) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("to_f16 overflows to infinity, underflows to zero with its sign and keeps NaN",
          "[kernels][f16]") {
  using Limits = std::numeric_limits<float>;
  for (const float large : {65520.0F, 65536.0F, 1e6F, Limits::max(), Limits::infinity()}) {
    CHECK(to_f16(large).bits == 0x7c00);
    CHECK(to_f16(-large).bits == 0xfc00);
  }
  for (const float tiny : {0.0F, Limits::denorm_min(), Limits::min(), 1e-20F, 0x1p-25F}) {
    CHECK(to_f16(tiny).bits == 0);
    CHECK(to_f16(-tiny).bits == 0x8000);
  }
  // Quiet and signalling, with the lowest bit of the payload alone: it must not become infinity.
  for (const std::uint32_t nan : {0x7fc00000U, 0x7fffffffU, 0x7f800001U, 0xff800001U}) {
    const F16 narrowed = to_f16(std::bit_cast<float>(nan));
    CHECK(std::isnan(value_of(narrowed.bits)));
    CHECK((narrowed.bits & 0x200) != 0);
    CHECK((narrowed.bits >> 15) == (nan >> 31));
  }
}

}  // namespace dstrain
