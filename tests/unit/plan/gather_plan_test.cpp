#include "engine/plan/gather_plan.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

/// Embedding, `blocks` blocks, head; tied: the head reads the embedding as well.
UnitWalk walk_of(int blocks, bool tied) {
  UnitWalk walk;
  const int head = blocks + 1;
  for (int unit = 0; unit <= head; ++unit) {
    walk.push_back({Pass::kForward, unit, {unit}, {}});
  }
  const std::vector<int> logits = tied ? std::vector<int>{head, 0} : std::vector<int>{head};
  walk.push_back({Pass::kBackward, head, logits, logits});
  for (int unit = blocks; unit > 0; --unit) {
    walk.push_back({Pass::kBackward, unit, {unit}, {unit}});
  }
  walk.push_back({Pass::kBackward, 0, {}, {0}});
  return walk;
}

/// Plays several walks and checks that what a visit reads is there, whole, and overwritten by no
/// other gather between its start and its last use. Returns the elements gathered in one walk.
std::int64_t play(const GatherPlan& plan, const std::vector<std::int64_t>& sizes, bool repeats) {
  std::vector<int> memory(static_cast<std::size_t>(plan.size()), -1);  // unit that lies there
  std::int64_t gathered = 0;
  const auto visits = static_cast<std::int64_t>(plan.walk().size());
  const auto start = [&](std::int64_t visit) {
    for (const int index : plan.starting(visit)) {
      const Gather& gather = plan.gathers()[static_cast<std::size_t>(index)];
      const std::int64_t size = sizes[static_cast<std::size_t>(gather.unit)];
      REQUIRE(gather.offset + size <= plan.size());
      std::fill_n(memory.begin() + gather.offset, size, gather.unit);
      gathered += size;
    }
  };
  constexpr int kWalks = 3;
  start(-1);
  for (int walk = 0; walk < kWalks; ++walk) {
    for (std::int64_t visit = 0; visit < visits; ++visit) {
      start(visit);
      if (visit == visits - 1 && walk + 1 < kWalks) {
        start(-1);
      }
      std::set<int> whole;
      for (const int index : plan.used(visit)) {
        const Gather& gather = plan.gathers()[static_cast<std::size_t>(index)];
        const std::int64_t size = sizes[static_cast<std::size_t>(gather.unit)];
        const auto begin = memory.begin() + gather.offset;
        REQUIRE(std::all_of(begin, begin + size, [&](int unit) { return unit == gather.unit; }));
        whole.insert(gather.unit);
      }
      for (const int unit : plan.walk()[static_cast<std::size_t>(visit)].reads) {
        REQUIRE((sizes[static_cast<std::size_t>(unit)] == 0 || whole.contains(unit)));
      }
    }
  }
  if (!repeats) {
    REQUIRE(plan.starting(-1).empty());
  }
  REQUIRE(gathered % kWalks == 0);
  return gathered / kWalks;
}

TEST_CASE("a unit is gathered while the one before it computes, in two units of memory",
          "[plan][gather]") {
  const std::vector<std::int64_t> sizes{10, 10, 10, 10, 10};
  const GatherPlan plan(walk_of(3, false), sizes, {});
  CHECK(plan.size() == 20);
  // Visits: F emb, F b1, F b2, F b3, F head, B head, B b3, B b2, B b1, B emb.
  const auto starts = [&](std::int64_t visit) {
    std::vector<int> units;
    for (const int index : plan.starting(visit)) {
      units.push_back(plan.gathers()[static_cast<std::size_t>(index)].unit);
    }
    return units;
  };
  CHECK(starts(0) == std::vector<int>{0, 1});
  CHECK(starts(1) == std::vector<int>{2});
  CHECK(starts(2) == std::vector<int>{3});
  CHECK(starts(3) == std::vector<int>{4});
  CHECK(starts(4).empty());  // the head stays for its backward
  CHECK(starts(5) == std::vector<int>{3});
  CHECK(starts(6) == std::vector<int>{2});
  CHECK(starts(7) == std::vector<int>{1});
  CHECK(starts(8).empty());  // backward of the embedding reads nothing
  CHECK(play(plan, sizes, false) == 5 * 10 + 3 * 10);
}

TEST_CASE("no unit is used before it is whole or after it is overwritten", "[plan][gather]") {
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    const auto words = philox(trial, 1, 2);
    const int blocks = 1 + static_cast<int>(words[0] % 7);
    const bool tied = words[1] % 2 == 0;
    std::vector<std::int64_t> sizes;
    for (int unit = 0; unit < blocks + 2; ++unit) {
      const auto word = philox(trial, 3, static_cast<std::uint64_t>(unit))[0];
      sizes.push_back(word % 5 == 0 ? 0 : 16 * (1 + word % 40));  // 0: always whole
    }
    GatherOptions options;
    if (words[2] % 3 != 0) {
      options.prefetch = static_cast<std::int64_t>(words[2] % 3000);
    }
    if (words[3] % 3 != 0) {
      options.max_live = static_cast<std::int64_t>(words[3] % 3000);
    }
    options.max_reuse_distance = static_cast<std::int64_t>(words[0] % 5 * 400);
    options.repeats = words[1] % 3 == 0;
    CAPTURE(trial, blocks, tied, options.repeats);
    play(GatherPlan(walk_of(blocks, tied), sizes, options), sizes, options.repeats);
  }
}

TEST_CASE("the limits of a gather plan mean what they say", "[plan][gather]") {
  const std::vector<std::int64_t> sizes{10, 10, 10, 10, 10, 10, 10, 10};
  const UnitWalk walk = walk_of(6, false);
  CHECK(GatherPlan(walk, sizes, {.prefetch = 0}).size() == 10);
  CHECK(GatherPlan(walk, sizes, {.prefetch = 1}).size() == 20);  // at least one unit
  CHECK(GatherPlan(walk, sizes, {.prefetch = 30}).size() == 40);
  CHECK(GatherPlan(walk, sizes, {.prefetch = 30, .max_live = 25}).size() == 20);
  const GatherPlan keeps(walk, sizes, {.max_reuse_distance = 1000});
  CHECK(play(keeps, sizes, false) == 80);  // everything once
  const GatherPlan keeps_last_block(walk, sizes, {.max_reuse_distance = 20});
  CHECK(play(keeps_last_block, sizes, false) == 80 + 50);  // the head and one block stay
}

TEST_CASE("where micro-batches repeat, the first unit is gathered during the walk before",
          "[plan][gather]") {
  const std::vector<std::int64_t> sizes{10, 10, 10, 10};
  const GatherPlan plan(walk_of(2, true), sizes, {.repeats = true});
  REQUIRE(plan.starting(-1).size() == 1);
  CHECK(plan.gathers()[static_cast<std::size_t>(plan.starting(-1)[0])].unit == 0);
  play(plan, sizes, true);
}

}  // namespace
}  // namespace dstrain
