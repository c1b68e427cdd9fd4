// The plans of all ranks together own the model: every element of every tensor once, however
// pipeline, data and tensor parallelism cut it.
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/model_counts.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

struct Owners {
  Shape shape;
  std::vector<int> of;  // [element]
};
using OwnersByTensor = std::map<std::string, Owners>;

/// Element of the whole tensor that is element `flat` of a box of it, row by row.
std::int64_t index_in_tensor(const Piece& piece, std::int64_t flat) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (int dim = piece.shape.rank() - 1; dim >= 0; --dim) {
    index += (piece.box_start[dim] + flat % piece.box_extent[dim]) * stride;
    flat /= piece.box_extent[dim];
    stride *= piece.shape[dim];
  }
  return index;
}

/// Counts what this rank updates and saves. In stage 0 all data-parallel ranks update everything,
/// and the first of them counts; of ranks that have the same slice, likewise.
void add_owned(const RunPlan& plan, OwnersByTensor& owners) {
  const AxisSet same = kGradientAxes.without(plan.memory.placement().states.cut);
  if (plan.mesh.index(same, plan.rank) > 0) {
    return;
  }
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    for (const PlacedPiece& placed : plan.shards.pieces(unit, plan.memory.owned(unit))) {
      if (!plan.shards.unit(unit).params[static_cast<std::size_t>(placed.param)].counts()) {
        continue;
      }
      const Piece& piece = placed.piece;
      Owners& tensor = owners[piece.tensor];
      if (tensor.of.empty()) {
        tensor.shape = piece.shape;
        tensor.of.resize(static_cast<std::size_t>(piece.shape.numel()), 0);
      }
      REQUIRE(tensor.shape == piece.shape);
      for (std::int64_t flat = piece.flat.begin; flat < piece.flat.end; ++flat) {
        tensor.of.at(static_cast<std::size_t>(index_in_tensor(piece, flat))) += 1;
      }
    }
  }
}

struct Layout {
  int data = 1;
  int shard_ranks = -1;  ///< in stage 3
  TensorParallelConfig tensor{};
  PipelineConfig pipeline{};
};

TEST_CASE("the ranks of any layout own each parameter of the model once", "[train][plan]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const bool tied = GENERATE(false, true);
  const int stage = GENERATE(0, 1, 2, 3);
  const std::vector<Layout> layouts = {
      {.data = 1},
      {.data = 3},
      {.data = 2, .tensor = {.size = 2, .sequence_parallel = true}, .pipeline = {.stages = 2}},
      {.data = 4, .shard_ranks = 2, .tensor = {.size = 2}, .pipeline = {.stages = 2}},
      // Two ranks share each key/value head of the LLaMA.
      {.data = 1, .tensor = {.size = 4}, .pipeline = {.stages = 3}},
      {.data = 2,
       .tensor = {.size = 2},
       .pipeline = {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2}}};
  ModelSpec model = tiny_model(family);
  model.num_layers = 5;
  for (const Layout& layout : layouts) {
    const int world = layout.data * layout.tensor.size * layout.pipeline.stages;
    CAPTURE(tied, stage, layout.data, layout.tensor.size, layout.pipeline.stages);
    const Config config = tiny_config({.family = family,
                                       .tied = tied,
                                       .model = model,
                                       .accumulation = 4,
                                       .zero_stage = stage,
                                       .zero = {.shard_ranks = layout.shard_ranks},
                                       .tensor_parallel = layout.tensor,
                                       .pipeline = layout.pipeline},
                                      world);
    OwnersByTensor owners;
    for (int rank = 0; rank < world; ++rank) {
      add_owned(make_run_plan(config, world, rank), owners);
    }
    std::int64_t elements = 0;
    for (const auto& [name, tensor] : owners) {
      INFO(name);
      CHECK(std::all_of(tensor.of.begin(), tensor.of.end(), [](int count) { return count == 1; }));
      elements += static_cast<std::int64_t>(tensor.of.size());
    }
    CHECK(elements == num_parameters(config.model));
  }
}

}  // namespace
}  // namespace dstrain::test
