#include "engine/train/rank_groups.h"

#include <vector>

#include <fmt/format.h>

namespace dstrain {

RankGroups::RankGroups(Rendezvous& rendezvous, const Topology& topology, const Config& config) {
  const int rank = rendezvous.world_rank();
  const Coordinates here = topology.coordinates(rank);
  std::vector<int> all;
  std::vector<int> same_data;
  for (int other = 0; other < topology.world_size(); ++other) {
    all.push_back(other);
    if (topology.coordinates(other).data == here.data) {
      same_data.push_back(other);
    }
  }
  world = rendezvous.make_group("world", all);
  data = rendezvous.make_group(
      fmt::format("data-parallel (pipeline {}, tensor {})", here.pipeline, here.tensor),
      topology.members(Axis::kData, rank));
  const std::vector<int> split = topology.members(Axis::kTensor, rank);
  tensor = rendezvous.make_group(
      fmt::format("tensor-parallel (pipeline {}, data {})", here.pipeline, here.data), split);
  model = rendezvous.make_group(fmt::format("model-parallel (data {})", here.data), same_data);
  const std::vector<int> stages = topology.members(Axis::kPipeline, rank);
  pipeline = rendezvous.make_group(
      fmt::format("pipeline (data {}, tensor {})", here.data, here.tensor), stages);
  const bool holds_table = rank == stages.front() || rank == stages.back();
  if (config.model.tied_embeddings && stages.size() > 1 && holds_table) {
    tied = rendezvous.make_group(
        fmt::format("tied embedding (data {}, tensor {})", here.data, here.tensor),
        std::vector<int>{stages.front(), stages.back()});
  }

  const auto ranks = static_cast<std::int64_t>(split.size());
  const std::int64_t heads = config.model.num_key_value_heads;
  if (heads < ranks && heads > 1) {
    const std::int64_t copies = ranks / heads;
    const auto first = split.begin() + here.tensor / copies * copies;
    shared_heads =
        rendezvous.make_group(fmt::format("shared heads (pipeline {}, data {}, head {})",
                                          here.pipeline, here.data, here.tensor / copies),
                              std::vector<int>(first, first + copies));
  }
}

Communicator* RankGroups::norm(int zero_stage) const {
  Communicator* const group = zero_stage > 0 ? world.get() : model.get();
  return group->size() > 1 ? group : nullptr;
}

}  // namespace dstrain
