#include "engine/runtime/amax_history.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

constexpr float kE4M3 = 448.0F;
constexpr float kE5M2 = 57344.0F;

TEST_CASE("the exponent is the least that makes the largest magnitude fit", "[runtime][fp8]") {
  CHECK(AmaxHistory::exponent_of(448.0F, kE4M3) == 0);
  CHECK(AmaxHistory::exponent_of(std::nextafter(448.0F, 500.0F), kE4M3) == 1);
  CHECK(AmaxHistory::exponent_of(224.0F, kE4M3) == -1);
  CHECK(AmaxHistory::exponent_of(1.0F, kE5M2) == -15);
  for (const float largest : {kE4M3, kE5M2}) {
    for (float amax = 1e-25F; amax < 1e25F; amax *= 1.037F) {
      CAPTURE(amax, largest);
      const int exponent = AmaxHistory::exponent_of(amax, largest);
      CHECK(static_cast<double>(amax) <= std::ldexp(static_cast<double>(largest), exponent));
      CHECK(static_cast<double>(amax) > std::ldexp(static_cast<double>(largest), exponent - 1));
    }
  }
  // Never so far that a scale, or a number times it, leaves the range of bf16.
  CHECK(AmaxHistory::exponent_of(1e-45F, kE5M2) == -100);
  CHECK(AmaxHistory::exponent_of(3e38F, kE4M3) == 100);
}

TEST_CASE("a history holds the largest of the last steps", "[runtime][fp8]") {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0.0F, 6.0F);
  for (const std::int64_t length : {1, 2, 5, 64}) {
    AmaxHistory history;
    std::deque<std::optional<int>> steps;
    for (int step = 0; step < 500; ++step) {
      const bool is_bad = step % 17 == 3;
      const float amax = is_bad ? (step % 2 == 0 ? 0.0F : std::numeric_limits<float>::infinity())
                                : std::exp2(normal(generator));
      history.add_step(amax, kE4M3, length);
      steps.push_back(is_bad ? std::nullopt : std::optional(AmaxHistory::exponent_of(amax, kE4M3)));
      if (static_cast<std::int64_t>(steps.size()) > length) {
        steps.pop_front();
      }
      REQUIRE(history.exponent() == *std::max_element(steps.begin(), steps.end()));
      // The history in the form that a checkpoint keeps.
      REQUIRE(AmaxHistory(history.peaks()).exponent() == history.exponent());
    }
    CHECK(history.peaks().size() < 32);
  }
}

TEST_CASE("steps that say nothing of a scale leave none in the end", "[runtime][fp8]") {
  AmaxHistory history;
  CHECK_FALSE(history.exponent().has_value());
  history.add_step(2.0F, kE4M3, 3);
  for (int step = 0; step < 2; ++step) {
    history.add_step(0.0F, kE4M3, 3);
    CHECK(history.exponent() == AmaxHistory::exponent_of(2.0F, kE4M3));
  }
  history.add_step(std::nanf(""), kE4M3, 3);
  CHECK_FALSE(history.exponent().has_value());
}

}  // namespace
}  // namespace dstrain
