#include "engine/plan/time_sharing.h"

#include <catch2/catch.hpp>

#include "kernels/math/philox.h"

namespace dstrain {
namespace {

/// Every moment of a cycle of `moments`, one by one.
bool active(const Tenancy& tenancy, std::int64_t moment) {
  return tenancy.begin <= tenancy.end ? tenancy.begin <= moment && moment <= tenancy.end
                                      : moment >= tenancy.begin || moment <= tenancy.end;
}

TEST_CASE("tenants of one moment never share memory, and memory is at least the busiest moment's",
          "[plan]") {
  constexpr std::int64_t kMoments = 12;
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    std::vector<Tenancy> tenants;
    const std::uint64_t count = 1 + philox(trial, 0, 0)[0] % 14;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto words = philox(trial, 1, i);
      tenants.push_back({.begin = words[0] % kMoments,
                         .end = words[1] % kMoments,  // before begin: over the end of the cycle
                         .size = 1 + words[2] % 9});
    }
    const SharedLayout layout = share_memory(tenants);
    std::int64_t busiest = 0;
    for (std::int64_t moment = 0; moment < kMoments; ++moment) {
      std::vector<int> taken(static_cast<std::size_t>(layout.size), 0);
      std::int64_t here = 0;
      for (std::size_t i = 0; i < tenants.size(); ++i) {
        if (active(tenants[i], moment)) {
          here += tenants[i].size;
          for (std::int64_t at = 0; at < tenants[i].size; ++at) {
            taken.at(static_cast<std::size_t>(layout.offsets[i] + at)) += 1;
          }
        }
      }
      CHECK(std::all_of(taken.begin(), taken.end(), [](int users) { return users <= 1; }));
      busiest = std::max(busiest, here);
    }
    CHECK(layout.size >= busiest);
  }
}

TEST_CASE("tenants whose times follow each other stand in the same place", "[plan]") {
  const std::vector<Tenancy> chain{{0, 1, 8}, {1, 2, 8}, {2, 3, 8}, {3, 4, 8}};
  CHECK(share_memory(chain).size == 16);
  const std::vector<Tenancy> one_long{{0, 9, 100}, {0, 1, 8}, {1, 2, 8}, {2, 3, 8}};
  CHECK(share_memory(one_long).size == 116);
  CHECK(share_memory({}).size == 0);
}

}  // namespace
}  // namespace dstrain
