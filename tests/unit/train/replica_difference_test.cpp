#include "engine/train/replica_difference.h"

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

using Entries = std::vector<HeldCopies::Entry>;

/// Ranks on hosts a, b, c, … with these numbers for the parameters of blocks.3.
std::vector<HeldCopies> ranks_with(const std::vector<std::uint64_t>& sums) {
  std::vector<HeldCopies> held;
  for (const std::uint64_t sum : sums) {
    const std::string host(1, static_cast<char>('a' + held.size()));
    held.push_back(
        {.host = host,
         .entries = {
             {.group = "all", .unit = "blocks.2", .what = "parameters"},
             {.group = "all", .unit = "blocks.3", .what = "parameters", .sums = {.plain = sum}}}});
  }
  return held;
}

TEST_CASE("a majority tells which rank is wrong", "[train][replicas]") {
  const ReplicaDifference found = find_difference(ranks_with({7, 7, 8, 7}));
  CHECK(found.wrong == std::vector<int>{2});
  CHECK(found.sentence() ==
        "rank 2 (host c) has other parameters of blocks.3 than ranks 0, 1 and 3");
  CHECK(find_difference(ranks_with({8, 7, 9, 7, 7})).sentence() ==
        "ranks 0 (host a) and 2 (host c) have other parameters of blocks.3 than ranks 1, 3 and 4");
}

TEST_CASE("of two copies neither is known to be wrong, and both are named", "[train][replicas]") {
  CHECK(find_difference(ranks_with({7, 8})).sentence() ==
        "ranks 0 (host a) and 1 (host b) have different parameters of blocks.3, and nothing shows "
        "whose are right");
}

TEST_CASE("masters of its own, or a second group, tell which of two is wrong",
          "[train][replicas]") {
  std::vector<HeldCopies> with_master = ranks_with({7, 8});
  with_master[1].broken_units = {"blocks.3"};
  CHECK(find_difference(with_master).sentence() ==
        "rank 1 (host b) has other parameters of blocks.3 than rank 0");

  // Ranks 0 and 2 see the same data, so do 1 and 3; 0 and 1 share the layers, so do 2 and 3.
  std::vector<HeldCopies> crossed = ranks_with({7, 7, 8, 7});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    HeldCopies::Entry entry = crossed[rank].entries[1];
    entry.group = rank % 2 == 0 ? "even" : "odd";
    const BitSums sums = entry.sums;
    crossed[rank].entries = {entry};
    crossed[rank].entries.push_back({.group = rank < 2 ? "low" : "high",
                                     .unit = "blocks.3",
                                     .what = "parameters",
                                     .sums = sums});
  }
  CHECK(find_difference(crossed).wrong == std::vector<int>{2});
}

TEST_CASE("a rank whose parameters do not follow its masters needs no other", "[train][replicas]") {
  std::vector<HeldCopies> held = ranks_with({7, 7});
  held[0].broken_units = {"head"};
  CHECK(find_difference(held).sentence() ==
        "on rank 0 (host a) the parameters of head are not what the masters there round to");
}

TEST_CASE("what a rank holds, and what is found, arrive as they were sent", "[train][replicas]") {
  const std::uint64_t large = 0xfedcba9876543210U;
  HeldCopies held = ranks_with({large}).front();
  held.broken_units = {"head"};
  const HeldCopies arrived = nlohmann::json::parse(nlohmann::json(held).dump());
  CHECK(arrived.entries.at(1).sums.plain == large);
  CHECK(arrived.broken_units == held.broken_units);
  const ReplicaDifference difference = find_difference(ranks_with({7, 7, 8}));
  CHECK(ReplicaDifference(nlohmann::json::parse(nlohmann::json(difference).dump())) == difference);
}

}  // namespace
}  // namespace dstrain
