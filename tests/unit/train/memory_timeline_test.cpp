#include "engine/train/memory_timeline.h"

#include <algorithm>

#include <catch2/catch.hpp>

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
  return memory_timeline(config, make_run_plan(config, world, rank));
}

TEST_CASE("what is kept for backward fills its region at the highest and is gone at the end",
          "[train][plan]") {
  const auto schedule = GENERATE(ScheduleKind::k1F1B, ScheduleKind::kGpipe);
  const auto granularity = GENERATE(RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                    RecomputeGranularity::kFull);
  const int stages = GENERATE(1, 2);
  TinyOptions options{.accumulation = 3,
                      .zero_stage = 2,
                      .recompute = {.granularity = granularity},
                      .pipeline = {.stages = stages}};
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

TEST_CASE("the peak of a step of one micro-batch is in the head's backward", "[train][plan]") {
  ModelSpec model = tiny_model(Family::kLlama);
  model.vocab_size = 4099;  // whose logits are more than a block's workspace
  const Config config = tiny_config({.model = model}, 1);
  const RunPlan plan = make_run_plan(config, 1, 0);
  const MemoryTimeline timeline = memory_timeline(config, plan);
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
  const MemoryTimeline timeline = memory_timeline(config, plan);
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

}  // namespace
}  // namespace dstrain::test
