// GroupPlan: a set of ranks that one rank works with, known before any ranks meet. plan_groups()
// makes all sets of a rank, in the one order in which every rank forms its groups
// (engine/train/rank_groups.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/mesh.h"
#include "engine/plan/placement.h"
#include "engine/plan/space.h"

namespace dstrain {

enum class GroupId : std::uint8_t {
  kWorld,  ///< all ranks
  kData,   ///< same part of the model, other tokens: over these gradients are summed
  /// Neighbours of kData: those that hold a second copy of the parameters among them
  /// (Placement::secondary), or all of what is cut, where it is cut over fewer than kData.
  kDataInside,
  kDataAcross,   ///< those of kData that have the same place among their neighbours
  kStates,       ///< those that hold all states together once, where kWorld does so several times
  kContextRing,  ///< other tokens of the same samples; they see each other's keys and values
  /// The same; while they attend, each has some of the heads, and all of the group's tokens.
  kContextHeads,
  kTensor,    ///< same layers and tokens, other parts of the layers
  kModel,     ///< same tokens, other parts of the model
  kPipeline,  ///< same tokens and part of the layers, other layers
  /// The first and last stage of kPipeline, where a tied table lies on both.
  kTied,
  /// Neighbours in kTensor that hold the same key/value heads, where there are fewer heads than
  /// ranks and more than one.
  kSharedHeads,
  kExperts,  ///< other experts of the same layers: tokens go to those that they chose
  // Where experts lie on other groups of ranks than the rest (Mesh::experts_are_apart):
  kExpertData,   ///< the same experts, other tokens: over these their gradients are summed
  kExpertModel,  ///< those that hold all layers and experts together once
  /// All ranks, for checkpoints written during training.
  kCheckpoint,
};

struct GroupPlan {
  GroupId id = GroupId::kWorld;
  std::string name;          ///< unique in the job: the group's keys in the store, and in errors
  AxisSet axes;              ///< along which its members differ
  std::vector<int> members;  ///< in the world, ascending; the rank that it was made for is one
  Space space = Space::kDevice;  ///< of the tensors that travel in it

  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
};

/// The facts besides the mesh that decide which sets there are.
struct GroupNeeds {
  bool tied_embeddings = false;
  std::int64_t key_value_heads = 1;  ///< of the whole model
  bool background_saves = false;
  bool neighbours = false;         ///< some of kData work together
  bool across_neighbours = false;  ///< and, in turn, those that have the same place among them
  bool separate_states = false;    ///< and they hold all states among them
};

/// The group that what is cut is cut over: gradients are summed and slices gathered in it.
GroupId group_of_slices(const Placement& placement);
/// The same of a unit that is replicated over these axes.
GroupId group_of_slices(const Placement& placement, AxisSet replicated);
/// The group over which the squares of gradients are summed, so that each counts once.
GroupId group_of_norm(const Placement& placement);
/// The same of experts that have groups of their own.
GroupId group_of_expert_norm(const Placement& placement);

/// The sets that `rank` belongs to. A set may have one member.
std::vector<GroupPlan> plan_groups(const Mesh& mesh, const GroupNeeds& needs, int rank);

/// nullptr where the rank belongs to no such set.
const GroupPlan* find_group(const std::vector<GroupPlan>& groups, GroupId id);

}  // namespace dstrain
