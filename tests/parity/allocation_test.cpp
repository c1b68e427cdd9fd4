// The estimate equals the allocation: for every way of sharing a step, the arenas of all ranks,
// measured by component through their own tensors, against the outline that estimate-memory prints.
#include <algorithm>
#include <map>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "engine/train/run_outline.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

constexpr int kData = 2;

struct Allocation {
  ComponentBytes bytes;
  int pipeline_rank = 0;
  std::vector<std::string> faults;
};

/// Where a tensor lies: its address and the bytes up to the next cache line.
struct Extent {
  const std::byte* begin = nullptr;
  std::int64_t bytes = 0;
};

Extent extent_of(Tensor tensor) {
  return {static_cast<const std::byte*>(tensor.data()), (tensor.bytes() + 63) / 64 * 64};
}

/// Counts what the arena hands out: flat units where a region holds units, buffers where it holds
/// those.
Allocation measure(const Engine& engine) {
  const RunPlan& plan = engine.plan();
  const Arena& arena = engine.arena();
  Allocation result{
      .bytes = {}, .pipeline_rank = plan.mesh.index(Axis::kPipeline, plan.rank), .faults = {}};
  for (const Region& region : plan.memory.regions()) {
    const bool buffers = region.kind == RegionKind::kSaved || region.kind == RegionKind::kScratch ||
                         region.kind == RegionKind::kConstants;
    if (!buffers) {
      result.bytes[component_of(region.kind)] += arena.bytes(region.kind);
    }
  }
  std::map<RegionKind, std::vector<Extent>> extents;
  for (int i = 0; i < static_cast<int>(plan.blueprint.buffers().size()); ++i) {
    const BufferDecl& buffer = plan.blueprint.buffers()[static_cast<std::size_t>(i)];
    const bool saved = buffer.lifetime == Lifetime::kSaved;
    const int slots = saved ? plan.slots.num_slots(buffer.chunk) : 1;
    for (int slot = 0; slot < slots; ++slot) {
      const Extent extent = extent_of(arena.buffer({i}, slot));
      result.bytes[component_of(buffer)] += extent.bytes;
      extents[plan.memory.placement({i}).region].push_back(extent);
    }
  }
  // Side by side without a gap, the buffers fill their regions.
  for (auto& [kind, list] : extents) {
    std::sort(list.begin(), list.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      sum += list[i].bytes;
      if (i > 0 && list[i].begin != list[i - 1].begin + list[i - 1].bytes) {
        result.faults.push_back("buffers overlap or leave a gap in " + name_of(kind));
      }
    }
    if (sum != arena.bytes(kind)) {
      result.faults.push_back("buffers do not fill " + name_of(kind));
    }
  }
  if (result.bytes.total() != arena.bytes()) {
    result.faults.emplace_back("the components do not sum up to the arena");
  }
  return result;
}

void check_estimate(const TinyOptions& options) {
  const int world = kData * options.pipeline.stages * options.tensor_parallel.size;
  const Config config = tiny_config(options, world);
  const std::vector<Allocation> ranks = thread_world(world, [&](Rendezvous& rank) {
    const Engine engine(make_run_plan(config, rank.world_size(), rank.world_rank()), rank,
                        make_cpu_backend(1), 1);
    return measure(engine);
  });
  const RunOutline outline = outline_run(config, world);
  REQUIRE(outline.stages.size() == static_cast<std::size_t>(options.pipeline.stages));
  for (const Allocation& rank : ranks) {
    CHECK(rank.faults.empty());
    const StageOutline& stage = outline.stages[static_cast<std::size_t>(rank.pipeline_rank)];
    CHECK(rank.bytes == stage.bytes);  // all ranks of a stage hold the same: AdamW
  }
}

TEST_CASE("the estimate is the allocation, component by component, in every layout",
          "[parity][plan]") {
  const auto family = GENERATE(Family::kGpt2, Family::kLlama);
  const auto precision = GENERATE(Precision::kF32, Precision::kBF16, Precision::kF16);
  const int zero = GENERATE(0, 1, 2, 3);
  const auto recompute = GENERATE(RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                  RecomputeGranularity::kFull);
  CAPTURE(family, precision, zero, recompute);
  const std::vector<TensorParallelConfig> tensors = {
      {}, {.size = 2}, {.size = 2, .sequence_parallel = true}};
  const std::vector<PipelineConfig> pipelines = {
      {},
      {.stages = 2},
      {.stages = 2, .schedule = ScheduleKind::kGpipe},
      {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2}};
  ModelSpec model = tiny_model(family);
  model.num_layers = 4;
  model.tied_embeddings = zero % 2 == 0;
  static int met = 0;
  for (const TensorParallelConfig& tensor : tensors) {
    for (const PipelineConfig& pipeline : pipelines) {
      if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
      CAPTURE(tensor.size, tensor.sequence_parallel, pipeline.stages, pipeline.schedule);
      check_estimate({.family = family,
                      .model = model,
                      .precision = precision,
                      .accumulation = 4,
                      .zero_stage = zero,
                      .recompute = {.granularity = recompute},
                      .tensor_parallel = tensor,
                      .pipeline = pipeline});
    }
  }
}

}  // namespace
}  // namespace dstrain::test
