#include "engine/comm/clock_alignment.h"

#include <cstdlib>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

TEST_CASE("an offset is measured within what it says it may be off by", "[comm]") {
  constexpr int kRanks = 3;
  // All read one clock, so that every true offset is 0; the last two say that theirs is another.
  std::vector<ClockReading> readings(kRanks);
  run_ranks(Carrier::kTcp, kRanks, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    readings[rank] = compare_clocks(world, rank == 0 ? 7 : 8);
  });
  CHECK(readings[0].offset_ns == 0);
  CHECK(readings[0].uncertainty_ns == 0);
  CHECK(readings[1].uncertainty_ns > 0);
  CHECK(readings[1].uncertainty_ns < 100'000'000);
  CHECK(std::abs(readings[1].offset_ns) <= readings[1].uncertainty_ns);
  // One of those that share a clock reads it for both.
  CHECK(readings[2].offset_ns == readings[1].offset_ns);
  for (const ClockReading& reading : readings) {
    CHECK(reading.zero_ns == readings[0].zero_ns);
    CHECK(reading.at_ns >= reading.zero_ns);
  }
}

TEST_CASE("processes with one clock need no messages, and those of unknown clocks do", "[comm]") {
  REQUIRE(steady_clock_identity() != 0);
  REQUIRE(steady_clock_identity() == steady_clock_identity());
  constexpr int kRanks = 2;
  std::vector<ClockReading> shared(kRanks);
  std::vector<ClockReading> unknown(kRanks);
  run_ranks(Carrier::kUnix, kRanks, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    shared[rank] = compare_clocks(world);
    unknown[rank] = compare_clocks(world, 0);
  });
  CHECK(shared[0].uncertainty_ns == 0);
  CHECK(shared[1].uncertainty_ns == 0);
  CHECK(unknown[0].uncertainty_ns == 0);
  CHECK(unknown[1].uncertainty_ns > 0);
}

}  // namespace
}  // namespace dstrain
