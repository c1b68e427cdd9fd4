#include "engine/train/run_outline.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/config/arch/model_counts.h"
#include "engine/config/zero_stage.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/trained_part.h"

namespace dstrain {
namespace {

/// The ranks of a pipeline stage that stand for all of it. A stage's tensor-parallel ranks hold
/// equal shares, padded where they do not come out even, and so do its data-parallel ranks; but a
/// moment that only some elements have may fall on some of the slices only.
std::vector<int> ranks_to_plan(const Config& config, const Mesh& mesh, int stage) {
  const bool slices_differ =
      cuts_of(config.zero.stage).states &&
      moments_of(config.optimizer).second == MomentExtent::kNotHiddenMatrices;
  Coordinates at;
  at[Axis::kPipeline] = stage;
  const int first = mesh.rank(at);
  return slices_differ ? mesh.members(kGradientAxes, first) : std::vector<int>{first};
}

StageOutline outline_of(const RunPlan& plan, int rank) {
  const std::vector<int>& slots = plan.memory.options().slots;
  StageOutline stage{.blocks = {},
                     .worst_rank = rank,
                     .micro_batches_in_flight = *std::max_element(slots.begin(), slots.end()),
                     .bytes = component_bytes(plan.blueprint, plan.memory)};
  for (const ChunkPlan& chunk : plan.chunks) {
    stage.blocks.push_back({chunk.stage.extent().first_block, chunk.stage.extent().end_block});
  }
  return stage;
}

}  // namespace

const StageOutline& fullest(const std::vector<StageOutline>& stages) {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const StageOutline& a, const StageOutline& b) {
                             return a.total_bytes() < b.total_bytes();
                           });
}

std::vector<int> ranks_that_stand_for_all(const Config& config, int world_size) {
  const Mesh mesh = mesh_of(config, world_size);
  std::vector<int> ranks;
  for (int stage = 0; stage < config.pipeline.stages; ++stage) {
    const std::vector<int> of_stage = ranks_to_plan(config, mesh, stage);
    ranks.insert(ranks.end(), of_stage.begin(), of_stage.end());
  }
  return ranks;
}

RunOutline outline_run(const Config& config, int world_size) {
  const Schedule schedule = schedule_of(config);
  RunOutline outline{.mesh = mesh_of(config, world_size),
                     .parameters = num_parameters(config.model),
                     .idle_share = idle_share(schedule, /*forward_cost=*/1, /*backward_cost=*/2),
                     .stages = {}};
  for (int stage = 0; stage < config.pipeline.stages; ++stage) {
    std::vector<StageOutline> candidates;
    for (const int rank : ranks_to_plan(config, outline.mesh, stage)) {
      const RunPlan plan = make_run_plan(config, world_size, rank, schedule);
      outline.trained = trained_parameters(plan.shape);
      candidates.push_back(outline_of(plan, rank));
    }
    outline.stages.push_back(fullest(candidates));
  }
  return outline;
}

nlohmann::ordered_json layout_json(const Mesh& mesh, const Config& config) {
  const TensorParallelConfig& tensor = config.tensor_parallel;
  return {{"pipeline", mesh.degree(Axis::kPipeline)},
          {"data", mesh.degree(kDataAxes)},
          {"context", mesh.degree(kContextAxes)},
          {"experts", mesh.degree(Axis::kExpert)},
          {"tensor", mesh.degree(Axis::kTensor)},
          {"sequence_parallel", tensor.size > 1 && tensor.sequence_parallel},
          {"zero_stage", config.zero.stage}};
}

std::string place_of_rank(const Mesh& mesh, int rank) {
  std::string place;
  for (const auto& [axes, name] : {std::pair{AxisSet(Axis::kPipeline), "pipeline"},
                                   {kDataAxes, "data"},
                                   {kContextAxes, "context"},
                                   {AxisSet(Axis::kExpert), "experts"},
                                   {AxisSet(Axis::kTensor), "tensor"}}) {
    if (mesh.degree(axes) == 1) continue;
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", name, mesh.index(axes, rank));
  }
  return place;
}

}  // namespace dstrain
