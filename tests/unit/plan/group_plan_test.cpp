#include "engine/plan/group_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

TEST_CASE("a rank's groups are those that it has always met in, by the same names", "[plan]") {
  const Mesh mesh({.pipeline = 2, .data_inside = 2, .tensor = 4, .expert_tensor = 4});
  const std::vector<GroupPlan> groups = plan_groups(
      mesh, {.tied_embeddings = true, .key_value_heads = 2, .background_saves = true}, 10);
  // Rank 10 is at pipeline 1, data 0, tensor 2.
  struct Expected {
    GroupId id;
    std::string name;
    std::vector<int> members;
    Space space;
  };
  std::vector<int> all(16);
  for (int rank = 0; rank < 16; ++rank) {
    all[static_cast<std::size_t>(rank)] = rank;
  }
  const std::vector<Expected> expected{
      {GroupId::kWorld, "world", all, Space::kHost},
      {GroupId::kData, "data-parallel (pipeline 1, tensor 2)", {10, 14}, Space::kDevice},
      {GroupId::kTensor, "tensor-parallel (pipeline 1, data 0)", {8, 9, 10, 11}, Space::kDevice},
      {GroupId::kModel, "model-parallel (data 0)", {0, 1, 2, 3, 8, 9, 10, 11}, Space::kHost},
      {GroupId::kPipeline, "pipeline (data 0, tensor 2)", {2, 10}, Space::kDevice},
      {GroupId::kTied, "tied embedding (data 0, tensor 2)", {2, 10}, Space::kDevice},
      {GroupId::kSharedHeads,
       "shared heads (pipeline 1, data 0, head 1)",
       {10, 11},
       Space::kDevice},
      {GroupId::kCheckpoint, "checkpoint", all, Space::kHost}};
  REQUIRE(groups.size() == expected.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    CHECK(groups[i].id == expected[i].id);
    CHECK(groups[i].name == expected[i].name);
    CHECK(groups[i].members == expected[i].members);
    CHECK(groups[i].space == expected[i].space);
  }
}

TEST_CASE("groups that nobody needs are not formed", "[plan]") {
  const Mesh mesh({.pipeline = 3, .tensor = 2});
  const std::vector<GroupPlan> plain = plan_groups(mesh, {.key_value_heads = 2}, 2);
  CHECK(find_group(plain, GroupId::kTied) == nullptr);
  CHECK(find_group(plain, GroupId::kSharedHeads) == nullptr);
  CHECK(find_group(plain, GroupId::kCheckpoint) == nullptr);
  CHECK(find_group(plain, GroupId::kData)->members == std::vector<int>{2});
  // A tied table lies on the first and the last stage alone.
  const GroupNeeds tied{.tied_embeddings = true, .key_value_heads = 2};
  CHECK(find_group(plan_groups(mesh, tied, 2), GroupId::kTied) == nullptr);
  CHECK(find_group(plan_groups(mesh, tied, 5), GroupId::kTied)->members == std::vector<int>{1, 5});
}

TEST_CASE("all members of a group plan it alike, and no two groups share a name", "[plan]") {
  const Mesh mesh({.pipeline = 2,
                   .data_across = 2,
                   .data_inside = 2,
                   .context_ring = 3,
                   .context_heads = 2,
                   .tensor = 4});
  std::map<std::string, std::vector<int>> by_name;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    for (const GroupPlan& group : plan_groups(mesh,
                                              {.tied_embeddings = true,
                                              .key_value_heads = 2,
                                              .background_saves = true,
                                              .neighbours = true,
                                              .across_neighbours = true,
                                              .separate_states = true},
                                              rank)) {
      const auto [same, is_new] = by_name.emplace(group.name, group.members);
      CHECK(same->second == group.members);
      CHECK(std::count(group.members.begin(), group.members.end(), rank) == 1);
    }
  }
  // 192 ranks: the world twice, 8 data, 64 context rings, 96 context heads, 48 tensor, 24 model,
  // 96 pipeline, 96 tied, 96 shared heads, 16 neighbours, 96 across them, 2 of states; with whole
  // experts, 2 of their data and 96 of all of them.
  CHECK(by_name.size() == 742);
}

TEST_CASE("whole experts lie on ranks of all tensor groups of a stage", "[plan]") {
  const Mesh mesh({.pipeline = 2, .data_inside = 2, .tensor = 2, .expert = 2});
  const auto members = [&](GroupId id, int rank) {
    const std::vector<GroupPlan> groups = plan_groups(mesh, {}, rank);
    return find_group(groups, id)->members;
  };
  CHECK(members(GroupId::kExperts, 6) == std::vector<int>{6, 7});
  CHECK(members(GroupId::kExpertData, 6) == std::vector<int>{4, 6});
  CHECK(members(GroupId::kExpertModel, 6) == std::vector<int>{2, 3, 6, 7});
  const Mesh alone({.data_inside = 2, .tensor = 2});
  const std::vector<GroupPlan> undealt = plan_groups(alone, {}, 1);
  CHECK(find_group(undealt, GroupId::kExperts) == nullptr);
  CHECK(find_group(undealt, GroupId::kExpertData)->members == std::vector<int>{0, 1, 2, 3});
  const Mesh in_parts({.data_inside = 2, .tensor = 2, .expert_tensor = 2});
  CHECK(find_group(plan_groups(in_parts, {}, 1), GroupId::kExpertData) == nullptr);
}

TEST_CASE("neighbours and those across them are formed where some work together", "[plan]") {
  const Mesh mesh({.pipeline = 2, .data_across = 2, .data_inside = 3, .tensor = 2});
  // Rank 19 is at pipeline 1, across 1, inside 0, tensor 1.
  const std::vector<GroupPlan> groups = plan_groups(
      mesh, {.neighbours = true, .across_neighbours = true, .separate_states = true}, 19);
  const auto members = [&](GroupId id) { return find_group(groups, id)->members; };
  CHECK(members(GroupId::kDataInside) == std::vector<int>{19, 21, 23});
  CHECK(members(GroupId::kDataAcross) == std::vector<int>{13, 19});
  CHECK(members(GroupId::kStates) == std::vector<int>{6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23});
  CHECK(find_group(groups, GroupId::kStates)->space == Space::kHost);
  const std::vector<GroupPlan> second_copy = plan_groups(mesh, {.neighbours = true}, 19);
  CHECK(find_group(second_copy, GroupId::kDataInside)->members == std::vector<int>{19, 21, 23});
  CHECK(find_group(second_copy, GroupId::kDataAcross) == nullptr);
  CHECK(find_group(second_copy, GroupId::kStates) == nullptr);
  Placement placement = zero_placement({.states = true, .gradients = true, .parameters = true});
  CHECK(group_of_slices(placement) == GroupId::kData);
  CHECK(group_of_norm(placement) == GroupId::kWorld);
  placement.states.cut = kNeighbourAxes;
  CHECK(group_of_slices(placement) == GroupId::kDataInside);
  CHECK(group_of_norm(placement) == GroupId::kStates);
  CHECK(group_of_norm(zero_placement({})) == GroupId::kModel);
}

}  // namespace
}  // namespace dstrain
