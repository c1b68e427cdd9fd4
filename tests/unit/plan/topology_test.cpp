#include "engine/plan/topology.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

TEST_CASE("ranks and coordinates are each other's inverse, tensor fastest", "[plan]") {
  const Topology mesh(2, 3, 4);
  REQUIRE(mesh.world_size() == 24);
  for (int rank = 0; rank < 24; ++rank) {
    CHECK(mesh.rank(mesh.coordinates(rank)) == rank);
  }
  CHECK(mesh.coordinates(0) == Coordinates{0, 0, 0});
  CHECK(mesh.coordinates(3) == Coordinates{0, 0, 3});
  CHECK(mesh.coordinates(4) == Coordinates{0, 1, 0});
  CHECK(mesh.coordinates(23) == Coordinates{1, 2, 3});
}

TEST_CASE("groups along an axis partition the world and every member names the same one",
          "[plan]") {
  const Topology mesh(2, 3, 4);
  for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor}) {
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> members = mesh.members(axis, rank);
      CHECK(static_cast<int>(members.size()) == mesh.degree(axis));
      CHECK(std::count(members.begin(), members.end(), rank) == 1);
      groups.insert(members);
    }
    std::multiset<int> all;
    for (const std::vector<int>& group : groups) {
      all.insert(group.begin(), group.end());
    }
    CHECK(all.size() == 24);
    CHECK(std::set<int>(all.begin(), all.end()).size() == 24);
  }
  CHECK(mesh.members(Axis::kTensor, 5) == std::vector<int>{4, 5, 6, 7});
  CHECK(mesh.members(Axis::kData, 5) == std::vector<int>{1, 5, 9});
  CHECK(mesh.members(Axis::kPipeline, 5) == std::vector<int>{5, 17});
}

TEST_CASE("a mesh refuses degrees below one and ranks outside it", "[plan]") {
  CHECK_THROWS_AS(Topology(1, 0, 1), InternalError);
  CHECK_THROWS_AS(Topology(1, 2, 1).coordinates(2), InternalError);
}

}  // namespace
}  // namespace dstrain
