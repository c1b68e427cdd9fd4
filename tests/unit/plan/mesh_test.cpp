#include "engine/plan/mesh.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Every degree another, so that no two axes can be taken for each other.
const MeshDegrees kAllDiffer{.pipeline = 2,
                             .data_across = 3,
                             .data_inside = 2,
                             .context_ring = 5,
                             .context_heads = 3,
                             .tensor = 4,
                             .expert = 6,
                             .expert_tensor = 2};

std::vector<AxisSet> sets_of_one_folding() {
  constexpr std::array kDense{Axis::kPipeline,    Axis::kDataAcross,   Axis::kDataInside,
                              Axis::kContextRing, Axis::kContextHeads, Axis::kTensor};
  constexpr std::array kExperts{Axis::kPipeline, Axis::kExpertData, Axis::kExpert,
                                Axis::kExpertTensor};
  std::vector<AxisSet> sets;
  const auto add_subsets = [&sets](const auto& axes) {
    for (unsigned chosen = 0; chosen < 1U << axes.size(); ++chosen) {
      AxisSet set;
      for (std::size_t i = 0; i < axes.size(); ++i) {
        set = (chosen >> i & 1U) != 0 ? set | axes[i] : set;
      }
      sets.push_back(set);
    }
  };
  add_subsets(kDense);
  add_subsets(kExperts);
  return sets;
}

TEST_CASE("coordinates count the ranks of both foldings, tensor fastest", "[plan]") {
  const Mesh mesh(kAllDiffer);
  REQUIRE(mesh.world_size() == 720);
  int rank = 0;
  for (int pipeline = 0; pipeline < 2; ++pipeline) {
    for (int across = 0; across < 3; ++across) {
      for (int inside = 0; inside < 2; ++inside) {
        for (int context = 0; context < 15; ++context) {
          for (int tensor = 0; tensor < 4; ++tensor, ++rank) {
            const Coordinates at = mesh.coordinates(rank);
            CHECK(at[Axis::kPipeline] == pipeline);
            CHECK(at[Axis::kDataAcross] == across);
            CHECK(at[Axis::kDataInside] == inside);
            CHECK(at[Axis::kContextRing] == context / 3);
            CHECK(at[Axis::kContextHeads] == context % 3);
            CHECK(at[Axis::kTensor] == tensor);
            CHECK(mesh.rank(at) == rank);
          }
        }
      }
    }
  }
  rank = 0;
  for (int pipeline = 0; pipeline < 2; ++pipeline) {
    for (int data = 0; data < 30; ++data) {
      for (int expert = 0; expert < 6; ++expert) {
        for (int tensor = 0; tensor < 2; ++tensor, ++rank) {
          const Coordinates at = mesh.coordinates(rank);
          CHECK(at[Axis::kPipeline] == pipeline);
          CHECK(at[Axis::kExpertData] == data);
          CHECK(at[Axis::kExpert] == expert);
          CHECK(at[Axis::kExpertTensor] == tensor);
        }
      }
    }
  }
}

TEST_CASE("groups along any axes partition the world, and every member names the same one",
          "[plan]") {
  const Mesh mesh(kAllDiffer);
  for (const AxisSet axes : sets_of_one_folding()) {
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> members = mesh.members(axes, rank);
      REQUIRE(static_cast<int>(members.size()) == mesh.degree(axes));
      CHECK(std::is_sorted(members.begin(), members.end()));
      CHECK(members.front() == mesh.first(axes, rank));
      CHECK(members.at(static_cast<std::size_t>(mesh.index(axes, rank))) == rank);
      groups.insert(members);
    }
    CHECK(static_cast<int>(groups.size()) * mesh.degree(axes) == mesh.world_size());
    std::set<int> all;
    for (const std::vector<int>& group : groups) {
      all.insert(group.begin(), group.end());
    }
    CHECK(static_cast<int>(all.size()) == mesh.world_size());
  }
}

TEST_CASE("members of a group differ along its axes and nowhere else", "[plan]") {
  const Mesh mesh({.pipeline = 2, .data_inside = 3, .tensor = 4});
  CHECK(mesh.members(Axis::kTensor, 5) == std::vector<int>{4, 5, 6, 7});
  CHECK(mesh.members(kDataAxes, 5) == std::vector<int>{1, 5, 9});
  CHECK(mesh.members(Axis::kPipeline, 5) == std::vector<int>{5, 17});
  CHECK(mesh.members(kModelAxes, 5) == std::vector<int>{4, 5, 6, 7, 16, 17, 18, 19});
  CHECK(mesh.members({}, 5) == std::vector<int>{5});
  CHECK(mesh.degree(Axis::kExpertData) == 12);  // without experts: whoever computes the same
}

TEST_CASE("context and data together are the ranks that share a gradient", "[plan]") {
  const Mesh mesh({.data_across = 2, .context_heads = 2, .tensor = 2});
  CHECK(mesh.members(kGradientAxes, 1) == std::vector<int>{1, 3, 5, 7});
  CHECK(mesh.members(kDataAxes, 1) == std::vector<int>{1, 5});
  CHECK(mesh.members(kContextAxes, 1) == std::vector<int>{1, 3});
}

TEST_CASE("a mesh refuses what cannot be", "[plan]") {
  CHECK_THROWS_AS(Mesh({.pipeline = 1, .data_inside = 0}), InternalError);
  CHECK_THROWS_AS(Mesh({.data_inside = 2}).coordinates(2), InternalError);
  CHECK_THROWS_AS(Mesh({.data_inside = 4, .expert = 3}), InternalError);
  const Mesh mesh({.data_inside = 2, .tensor = 2, .expert = 2});
  CHECK_THROWS_AS(mesh.degree({Axis::kDataInside, Axis::kExpert}), InternalError);
  CHECK_THROWS_AS(mesh.members({Axis::kTensor, Axis::kExpertTensor}, 0), InternalError);
  CHECK_NOTHROW(mesh.members({Axis::kPipeline, Axis::kExpert}, 0));
}

}  // namespace
}  // namespace dstrain
