// The formulas of kernels/math, scalar, against the C library in double precision.
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/core/dtype.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

TEST_CASE("fast_exp is within 2 units in the last place and clamps outside its range",
          "[kernels][math]") {
  double worst = 0.0;
  for (float x = -87.0F; x < 88.0F; x += 0.0137F) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(fast_exp(x) - exact) / exact);
  }
  CHECK(worst < 2.0 * 0x1p-23);
  CHECK(fast_exp(0.0F) == 1.0F);
  CHECK(fast_exp(-1000.0F) < 2e-38F);
  CHECK(fast_exp(-1000.0F) >= 0.0F);
  CHECK(fast_exp(1000.0F) > 1e38F);
  CHECK(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("fast_tanh is within 2e-7", "[kernels][math]") {
  double worst = 0.0;
  for (float x = -20.0F; x < 20.0F; x += 0.00371F) {
    worst = std::max(worst, std::abs(fast_tanh(x) - std::tanh(static_cast<double>(x))));
  }
  CHECK(worst < 2e-7);
}

TEST_CASE("to_bf16 finds the nearest of the two neighbours, ties to even", "[kernels][math]") {
  std::uint32_t bits = 12345;
  for (int i = 0; i < 100000; ++i) {
    bits = bits * 1664525U + 1013904223U;
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value) || std::isinf(value)) {
      continue;
    }
    const auto below = static_cast<std::uint16_t>(bits >> 16);  // towards zero
    const std::uint32_t rest = bits & 0xffffU;
    const bool up = rest > 0x8000U || (rest == 0x8000U && (below & 1U) != 0);
    CHECK(to_bf16(value).bits == static_cast<std::uint16_t>(below + (up ? 1 : 0)));
  }
  CHECK(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001U)))));
  CHECK(std::isinf(to_float(to_bf16(3.4e38F))));
}

}  // namespace dstrain
