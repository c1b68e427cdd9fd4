#include "engine/train/run_outline.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "engine/config/arch/model_counts.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

/// The largest plan of each pipeline stage, from those of all ranks.
std::vector<std::int64_t> largest_plans(const Config& config, int world) {
  std::vector<std::int64_t> largest(static_cast<std::size_t>(config.pipeline.stages), 0);
  for (int rank = 0; rank < world; ++rank) {
    const RunPlan plan = make_run_plan(config, world, rank);
    std::int64_t& most =
        largest.at(static_cast<std::size_t>(plan.mesh.index(Axis::kPipeline, plan.rank)));
    most = std::max(most, plan.memory.bytes());
  }
  return largest;
}

void check_against_all_ranks(const Config& config, int world) {
  const RunOutline outline = outline_run(config, world);
  const std::vector<std::int64_t> largest = largest_plans(config, world);
  REQUIRE(outline.stages.size() == largest.size());
  for (std::size_t stage = 0; stage < largest.size(); ++stage) {
    const StageOutline& here = outline.stages[stage];
    CHECK(here.total_bytes() == largest[stage]);
    CHECK(make_run_plan(config, world, here.worst_rank).memory.bytes() == largest[stage]);
    CHECK(outline.mesh.index(Axis::kPipeline, here.worst_rank) == static_cast<int>(stage));
  }
  CHECK(fullest(outline.stages).total_bytes() == *std::max_element(largest.begin(), largest.end()));
}

TEST_CASE("no rank of a stage plans more than its outline says", "[train][plan]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  check_against_all_ranks(tiny_config({.family = family,
                                       .tied = true,
                                       .precision = Precision::kBF16,
                                       .accumulation = 4,
                                       .zero_stage = stage,
                                       .tensor_parallel = {.size = 2, .sequence_parallel = true},
                                       .pipeline = {.stages = 2}},
                                      8),
                          8);
  // Muon keeps no second moment of the blocks' matrices, and slices hold more or fewer of those.
  check_against_all_ranks(tiny_config({.family = family,
                                       .accumulation = 4,
                                       .zero_stage = stage,
                                       .optimizer = {.kind = OptimizerKind::kMuon},
                                       .pipeline = {.stages = 2}},
                                      6),
                          6);
}

TEST_CASE("an outline sums up parameters, step and schedule", "[train][plan]") {
  ModelSpec model = tiny_model(Family::kLlama);
  model.num_layers = 8;
  const Config config = tiny_config({.model = model,
                                     .micro_batch = 1,
                                     .accumulation = 6,
                                     .tensor_parallel = {.size = 2},
                                     .pipeline = {.stages = 2,
                                                  .schedule = ScheduleKind::kInterleaved,
                                                  .virtual_stages = 2,
                                                  .partition = {1, 2, 2, 3}}},
                                    8);
  const RunOutline outline = outline_run(config, 8);
  CHECK(outline.mesh.degree(kDataAxes) == 2);
  CHECK(outline.parameters == num_parameters(model));
  // (p-1)/(v·m+p-1), engine/plan/schedule.h.
  CHECK(outline.idle_share == Approx(1.0 / (2 * 6 + 1)));
  REQUIRE(outline.stages.size() == 2);
  CHECK(outline.stages[0].blocks == std::vector<Range>{{0, 1}, {3, 5}});
  CHECK(outline.stages[1].blocks == std::vector<Range>{{1, 3}, {5, 8}});
}

}  // namespace
}  // namespace dstrain::test
