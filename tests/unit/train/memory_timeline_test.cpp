#include "engine/train/memory_timeline.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

constexpr std::array kActivations = {
    MemoryComponent::kAttentionActivations, MemoryComponent::kMlpActivations,
    MemoryComponent::kNormActivations, MemoryComponent::kOtherActivations};

std::int64_t most(const MemoryTimeline& timeline, MemoryComponent component) {
  std::int64_t bytes = 0;
  for (const MemoryMoment& moment : timeline.moments) {
    bytes = std::max(bytes, moment.in_use[component]);
  }
  return bytes;
}

MemoryTimeline timeline_of(const TinyOptions& options, int world, int rank) {
  const Config config = tiny_config(options, world);
  return memory_timeline(make_run_plan(config, world, rank));
}

TEST_CASE("what is kept for backward fills its region at the highest and is gone at the end",
          "[train][plan]") {
  const auto schedule = GENERATE(ScheduleKind::k1F1B, ScheduleKind::kGpipe);
  const auto granularity = GENERATE(RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                    RecomputeGranularity::kFull);
  const int stages = GENERATE(1, 2);
  const auto block_order = GENERATE(BlockOrder::kHorizontal, BlockOrder::kVertical);
  if (block_order == BlockOrder::kVertical && stages > 1) return;
  TinyOptions options{.accumulation = 3,
                      .zero_stage = 2,
                      .recompute = {.granularity = granularity},
                      .pipeline = {.stages = stages},
                      .block_order = block_order};
  options.pipeline.schedule = stages > 1 ? schedule : ScheduleKind::k1F1B;
  for (int rank = 0; rank < 2 * stages; ++rank) {
    CAPTURE(rank, stages);
    const MemoryTimeline timeline = timeline_of(options, 2 * stages, rank);
    for (const MemoryComponent component : kActivations) {
      CHECK(most(timeline, component) == timeline.held[component]);
      CHECK(timeline.moments.back().in_use[component] == 0);
    }
    CHECK(timeline.moments.back().kind == MemoryMoment::Kind::kUpdate);
    CHECK(std::is_sorted(
        timeline.moments.begin(), timeline.moments.end(),
        [](const MemoryMoment& a, const MemoryMoment& b) { return a.begin < b.begin; }));
    CHECK(timeline.moments.front().begin == 0.0);
    CHECK(timeline.moments.back().begin < 1.0);
  }
}

TEST_CASE("what continues texts is counted", "[train][plan]") {
  Config config = tiny_config({}, 1);
  config.training.eval_prompts = {"a"};
  const RunPlan plan = make_run_plan(config, 1, 0);
  CHECK(plan.memory.region(RegionKind::kCache).bytes > 0);
  const MemoryTimeline timeline = memory_timeline(plan);
  CHECK(timeline.held.total() == plan.memory.bytes());
  for (const MemoryMoment& moment : timeline.moments) {
    CHECK(moment.in_use.total() <= plan.memory.bytes());
  }
}

TEST_CASE("the peak of a step of one micro-batch is in the head's backward", "[train][plan]") {
  ModelSpec model = tiny_model(Family::kLlama);
  model.vocab_size = 4099;  // whose logits are more than a block's workspace
  const Config config = tiny_config({.model = model}, 1);
  const RunPlan plan = make_run_plan(config, 1, 0);
  const MemoryTimeline timeline = memory_timeline(plan);
  CHECK(describe(timeline.highest(), plan.blueprint) == "backward of micro-batch 0, head");
  CHECK(timeline.highest().in_use[MemoryComponent::kLogits] ==
        timeline.held[MemoryComponent::kLogits]);
  CHECK(describe(timeline.moments.back(), plan.blueprint) == "optimizer step");
  // Forward through L blocks keeps an equal share of attention's activations with each.
  const std::int64_t all = timeline.held[MemoryComponent::kAttentionActivations];
  const std::int64_t layers = config.model.num_layers;
  for (std::int64_t block = 0; block < layers; ++block) {
    const MemoryMoment& moment = timeline.moments[static_cast<std::size_t>(1 + block)];
    CHECK(moment.in_use[MemoryComponent::kAttentionActivations] == all / layers * (block + 1));
  }
}

TEST_CASE("gathered units and buckets come and go within what is held", "[train][plan]") {
  const TinyOptions options{.accumulation = 2, .zero_stage = 3};
  const Config config = tiny_config(options, 4);
  const RunPlan plan = make_run_plan(config, 4, 1);
  const MemoryTimeline timeline = memory_timeline(plan);
  std::int64_t largest = 0;
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    largest = std::max(largest, plan.shards.padded_numel(unit) * 4);
  }
  for (const auto component : {MemoryComponent::kGatherBuffers, MemoryComponent::kBuckets}) {
    CHECK(most(timeline, component) >= largest);
    CHECK(most(timeline, component) <= timeline.held[component]);
    CHECK(timeline.moments.back().in_use[component] == 0);
  }
  // Parameters, gradients and states stand all the time.
  for (const auto component :
       {MemoryComponent::kParameters, MemoryComponent::kGradients, MemoryComponent::kOptimizer}) {
    for (const MemoryMoment& moment : timeline.moments) {
      CHECK(moment.in_use[component] == timeline.held[component]);
    }
  }
}

/// Bytes of f32 buckets, from visit to visit of two micro-batches: the units on their way at each.
TEST_CASE("a table larger than all blocks passes through its bucket once at a time",
          "[train][plan]") {
  const int stage = GENERATE(2, 3);
  ModelSpec model = tiny_model(Family::kLlama);
  model.num_layers = 3;
  model.vocab_size = 40009;
  const bool overlap = GENERATE(true, false);
  const Config config = tiny_config(
      {.model = model, .accumulation = 2, .overlap_comm = overlap, .zero_stage = stage}, 2);
  const RunPlan plan = make_run_plan(config, 2, 0);
  const auto bucket = [&](const char* name) {
    for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
      if (plan.blueprint.units()[static_cast<std::size_t>(unit)].name == name) {
        return 4 * plan.shards.padded_numel(unit);
      }
    }
    return std::int64_t{-1};
  };
  const std::int64_t table = bucket("embedding");
  const std::int64_t head = bucket("head");  // and the norm before it
  const std::int64_t block = bucket("blocks.0");
  REQUIRE(table > 3 * block);
  const std::int64_t late = overlap ? 1 : 0;  // a unit travels while the next one is computed
  const std::vector<std::int64_t> forward = {0, 0, 0, 0, 0};
  const std::vector<std::int64_t> backward = {head, block + late * head, block + late * block,
                                              block + late * block, table + late * block};
  std::vector<std::int64_t> expected = forward;
  expected.insert(expected.end(), backward.begin(), backward.end());
  expected.push_back(late * table);  // while the next micro-batch looks up its embeddings
  expected.insert(expected.end(), forward.begin() + 1, forward.end());
  expected.insert(expected.end(), backward.begin(), backward.end());
  expected.push_back(0);  // the optimizer waits for all of them

  const MemoryTimeline timeline = memory_timeline(plan);
  std::vector<std::int64_t> in_use;
  for (const MemoryMoment& moment : timeline.moments) {
    in_use.push_back(moment.in_use[MemoryComponent::kBuckets]);
  }
  CHECK(in_use == expected);
}

TEST_CASE("a backward that begins right after another one takes over the bucket", "[train][plan]") {
  // The last stage of 1f1b computes forward and backward by turns; gpipe's backwards follow each
  // other. The table of an only block and its head travel in buckets of their own.
  ModelSpec model = tiny_model(Family::kLlama);
  model.num_layers = 2;
  model.vocab_size = 40009;
  TinyOptions options{.model = model, .accumulation = 2, .zero_stage = 2};
  options.pipeline = {.stages = 2};
  options.pipeline.schedule = ScheduleKind::kGpipe;
  const Config config = tiny_config(options, 4);
  const RunPlan plan = make_run_plan(config, 4, 0);
  const std::int64_t table = 4 * plan.shards.padded_numel(0);
  const std::int64_t block = 4 * plan.shards.padded_numel(1);
  std::vector<std::int64_t> in_use;
  for (const MemoryMoment& moment : memory_timeline(plan).moments) {
    in_use.push_back(moment.in_use[MemoryComponent::kBuckets]);
  }
  // F0 F1 B0 B1: table and block; the table of B0 is on its way while B1's block is computed.
  CHECK(in_use == std::vector<std::int64_t>{0, 0, 0, 0, block, table + block, table + block,
                                            table + block, 0});
}

TEST_CASE("the first units of the next micro-batch are gathered at the end of a backward",
          "[train][plan]") {
  const TinyOptions options{.accumulation = 2, .zero_stage = 3};
  const Config config = tiny_config(options, 2);
  const RunPlan plan = make_run_plan(config, 2, 0);
  std::vector<std::int64_t> gathered;
  for (const MemoryMoment& moment : memory_timeline(plan).moments) {
    gathered.push_back(moment.in_use[MemoryComponent::kGatherBuffers]);
  }
  const std::size_t walk = (gathered.size() - 1) / 2;
  const std::int64_t table = 4 * plan.shards.padded_numel(0);
  CHECK(gathered[walk - 1] == gathered[2 * walk - 1] + table);
  CHECK(gathered[walk] >= table);
}

}  // namespace
}  // namespace dstrain::test
