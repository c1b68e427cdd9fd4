#include "engine/train/rank_groups.h"

#include <vector>

#include <fmt/format.h>

#include "engine/train/state_snapshot.h"

namespace dstrain {

RankGroupPlans plan_rank_groups(const Topology& topology, const Config& config, int rank) {
  RankGroupPlans groups;
  const Coordinates here = topology.coordinates(rank);
  groups.world.name = "world";
  groups.model.name = fmt::format("model-parallel (data {})", here.data);
  for (int other = 0; other < topology.world_size(); ++other) {
    groups.world.members.push_back(other);
    if (topology.coordinates(other).data == here.data) {
      groups.model.members.push_back(other);
    }
  }
  groups.data = {fmt::format("data-parallel (pipeline {}, tensor {})", here.pipeline, here.tensor),
                 topology.members(Axis::kData, rank)};
  const std::vector<int> split = topology.members(Axis::kTensor, rank);
  groups.tensor = {fmt::format("tensor-parallel (pipeline {}, data {})", here.pipeline, here.data),
                   split};
  const std::vector<int> stages = topology.members(Axis::kPipeline, rank);
  groups.pipeline = {fmt::format("pipeline (data {}, tensor {})", here.data, here.tensor), stages};
  const bool holds_table = rank == stages.front() || rank == stages.back();
  if (config.model.tied_embeddings && stages.size() > 1 && holds_table) {
    groups.tied = {fmt::format("tied embedding (data {}, tensor {})", here.data, here.tensor),
                   {stages.front(), stages.back()}};
  }

  const auto ranks = static_cast<std::int64_t>(split.size());
  const std::int64_t heads = config.model.num_key_value_heads;
  if (heads < ranks && heads > 1) {
    const std::int64_t copies = ranks / heads;
    const auto first = split.begin() + here.tensor / copies * copies;
    groups.shared_heads = {fmt::format("shared heads (pipeline {}, data {}, head {})",
                                       here.pipeline, here.data, here.tensor / copies),
                           std::vector<int>(first, first + copies)};
  }
  if (saves_in_background(config)) {
    groups.checkpoint = {"checkpoint", groups.world.members};
  }
  return groups;
}

RankGroups::RankGroups(Rendezvous& host,
                       Rendezvous& device,
                       const Topology& topology,
                       const Config& config) {
  const RankGroupPlans plans = plan_rank_groups(topology, config, host.world_rank());
  const auto make = [](Rendezvous& rendezvous, const GroupPlan& plan) {
    return plan.members.empty() ? nullptr : rendezvous.make_group(plan.name, plan.members);
  };
  world = make(host, plans.world);
  data = make(device, plans.data);
  tensor = make(device, plans.tensor);
  model = make(host, plans.model);
  pipeline = make(device, plans.pipeline);
  tied = make(device, plans.tied);
  shared_heads = make(device, plans.shared_heads);
  checkpoint = make(host, plans.checkpoint);
}

void RankGroups::abort() noexcept {
  for (Communicator* const group :
       {world.get(), data.get(), tensor.get(), model.get(), pipeline.get(), tied.get(),
        shared_heads.get(), checkpoint.get()}) {
    if (group != nullptr) {
      group->abort();
    }
  }
}

Communicator* RankGroups::norm(int zero_stage) const {
  Communicator* const group = zero_stage > 0 ? world.get() : model.get();
  return group->size() > 1 ? group : nullptr;
}

}  // namespace dstrain
