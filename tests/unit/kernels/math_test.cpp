// The formulas of kernels/math, scalar, against the C library in double precision.
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/core/dtype.h"
#include "kernels/math/philox.h"
#include "kernels/math/stochastic_rounding.h"
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

TEST_CASE("philox gives the words of its authors' known answers", "[kernels][math]") {
  // Random123's kat_vectors for philox4x32, 10 rounds.
  CHECK(philox(0, 0, 0) ==
        std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ULL, ~0ULL, ~0ULL) ==
        std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("stochastic_bf16 goes up where the sum carries, and keeps NaN", "[kernels][math]") {
  const auto upper = [](std::uint32_t bits, std::uint32_t random) {
    return stochastic_bf16(std::bit_cast<float>(bits), random);
  };
  CHECK(upper(0x3f800001, 0xfffe) == 0x3f800000);
  CHECK(upper(0x3f800001, 0xffff) == 0x3f810000);
  CHECK(upper(0xbf808000, 0x7fff) == 0xbf800000);
  CHECK(upper(0xbf808000, 0x12348000) == 0xbf810000);  // of the random word the lower half counts
  CHECK(upper(0x3f800000, 0xffff) == 0x3f800000);
  CHECK(upper(0x7f800000, 0xffff) == 0x7f800000);
  CHECK(upper(0xff800000, 0xffff) == 0xff800000);
  CHECK(upper(0x7f800001, 0xffff) == 0x7fc00000);
}

}  // namespace dstrain
