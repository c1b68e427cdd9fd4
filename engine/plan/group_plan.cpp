#include "engine/plan/group_plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace dstrain {

std::vector<GroupPlan> plan_groups(const Mesh& mesh, const GroupNeeds& needs, int rank) {
  const int pipeline = mesh.index(Axis::kPipeline, rank);
  const int data = mesh.index(kGradientAxes, rank);
  const int tensor = mesh.index(Axis::kTensor, rank);
  std::vector<GroupPlan> groups;
  const auto add = [&](GroupId id, std::string name, AxisSet axes, Space space) -> GroupPlan& {
    return groups.emplace_back(GroupPlan{.id = id,
                                         .name = std::move(name),
                                         .axes = axes,
                                         .members = mesh.members(axes, rank),
                                         .space = space});
  };
  // What the host agrees on (metrics, norms, checkpoints) travels in host memory.
  add(GroupId::kWorld, "world", kAllAxes, Space::kHost);
  add(GroupId::kData, fmt::format("data-parallel (pipeline {}, tensor {})", pipeline, tensor),
      kGradientAxes, Space::kDevice);
  const int across = mesh.index(Axis::kDataAcross, rank);
  if (needs.neighbours) {
    add(GroupId::kDataInside,
        fmt::format("data-parallel neighbours (pipeline {}, across {}, tensor {})", pipeline,
                    across, tensor),
        kNeighbourAxes, Space::kDevice);
  }
  if (needs.across_neighbours) {
    add(GroupId::kDataAcross,
        fmt::format("data-parallel across neighbours (pipeline {}, inside {}, tensor {})", pipeline,
                    mesh.index(kNeighbourAxes, rank), tensor),
        Axis::kDataAcross, Space::kDevice);
  }
  if (needs.separate_states) {
    add(GroupId::kStates, fmt::format("states (across {})", across), kNeighbourAxes | kModelAxes,
        Space::kHost);
  }
  const int sample = mesh.index(kDataAxes, rank);
  if (mesh.degree(Axis::kContextRing) > 1) {
    add(GroupId::kContextRing,
        fmt::format("context ring (pipeline {}, data {}, heads {}, tensor {})", pipeline, sample,
                    mesh.index(Axis::kContextHeads, rank), tensor),
        Axis::kContextRing, Space::kDevice);
  }
  if (mesh.degree(Axis::kContextHeads) > 1) {
    add(GroupId::kContextHeads,
        fmt::format("context heads (pipeline {}, data {}, ring {}, tensor {})", pipeline, sample,
                    mesh.index(Axis::kContextRing, rank), tensor),
        Axis::kContextHeads, Space::kDevice);
  }
  add(GroupId::kTensor, fmt::format("tensor-parallel (pipeline {}, data {})", pipeline, data),
      Axis::kTensor, Space::kDevice);
  add(GroupId::kModel, fmt::format("model-parallel (data {})", data), kModelAxes, Space::kHost);
  add(GroupId::kPipeline, fmt::format("pipeline (data {}, tensor {})", data, tensor),
      Axis::kPipeline, Space::kDevice);

  const int last = mesh.degree(Axis::kPipeline) - 1;
  if (needs.tied_embeddings && last > 0 && (pipeline == 0 || pipeline == last)) {
    std::vector<int>& stages =
        add(GroupId::kTied, fmt::format("tied embedding (data {}, tensor {})", data, tensor),
            Axis::kPipeline, Space::kDevice)
            .members;
    stages = {stages.front(), stages.back()};
  }
  const std::int64_t heads = needs.key_value_heads;
  if (heads < mesh.degree(Axis::kTensor) && heads > 1) {
    const int copies = mesh.degree(Axis::kTensor) / static_cast<int>(heads);
    const int head = tensor / copies;
    std::vector<int>& holders =
        add(GroupId::kSharedHeads,
            fmt::format("shared heads (pipeline {}, data {}, head {})", pipeline, data, head),
            Axis::kTensor, Space::kDevice)
            .members;
    const auto first = holders.begin() + head * copies;
    holders = std::vector<int>(first, first + copies);
  }
  if (mesh.experts_are_apart()) {
    const int expert = mesh.index(Axis::kExpert, rank);
    const int expert_data = mesh.index(Axis::kExpertData, rank);
    const int expert_tensor = mesh.index(Axis::kExpertTensor, rank);
    if (mesh.degree(Axis::kExpert) > 1) {
      add(GroupId::kExperts,
          fmt::format("expert-parallel (pipeline {}, expert data {}, expert tensor {})", pipeline,
                      expert_data, expert_tensor),
          Axis::kExpert, Space::kDevice);
    }
    add(GroupId::kExpertData,
        fmt::format("expert data (pipeline {}, expert {}, expert tensor {})", pipeline, expert,
                    expert_tensor),
        Axis::kExpertData, Space::kDevice);
    add(GroupId::kExpertModel, fmt::format("experts of the model (expert data {})", expert_data),
        {Axis::kPipeline, Axis::kExpert, Axis::kExpertTensor}, Space::kHost);
  }
  if (needs.background_saves) {
    add(GroupId::kCheckpoint, "checkpoint", kAllAxes, Space::kHost);
  }
  return groups;
}

GroupId group_of_slices(const Placement& placement) {
  const AxisSet cut = placement.states.cut;
  return cut == kNeighbourAxes ? GroupId::kDataInside : GroupId::kData;
}

GroupId group_of_slices(const Placement& placement, AxisSet replicated) {
  return replicated == Axis::kExpertData ? GroupId::kExpertData : group_of_slices(placement);
}

GroupId group_of_expert_norm(const Placement& placement) {
  return placement.states.is_cut() ? GroupId::kWorld : GroupId::kExpertModel;
}

GroupId group_of_norm(const Placement& placement) {
  if (!placement.states.is_cut()) return GroupId::kModel;
  return placement.states.cut == kNeighbourAxes ? GroupId::kStates : GroupId::kWorld;
}

const GroupPlan* find_group(const std::vector<GroupPlan>& groups, GroupId id) {
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [id](const GroupPlan& group) { return group.id == id; });
  return found == groups.end() ? nullptr : &*found;
}

}  // namespace dstrain
