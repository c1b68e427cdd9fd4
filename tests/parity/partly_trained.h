// What the tests of frozen tensors and of adapters have in common: the layouts that must follow one
// rank, and that a run moves and holds what its plan says.
#pragma once

#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/tiny_model.h"

namespace dstrain::test {

inline void check_plan(const std::vector<TinyRun>& runs) {
  for (const TinyRun& run : runs) {
    CHECK(run.unplanned_traffic.empty());
    CHECK(run.arena_spaces == run.plan_spaces);
  }
}

struct TrainedLayout {
  const char* name;
  int ranks;
  void (*change)(TinyOptions&);
};
inline const TrainedLayout kTrainedLayouts[] = {
    {"tp2", 2, [](TinyOptions& o) { o.tensor_parallel.size = 2; }},
    {"tp4+sp", 4,
     [](TinyOptions& o) { o.tensor_parallel = {.size = 4, .sequence_parallel = true}; }},
    {"pp2", 2, [](TinyOptions& o) { o.pipeline.stages = 2; }},
    {"pp2 tied", 2,
     [](TinyOptions& o) {
       o.pipeline.stages = 2;
       o.tied = true;
     }},
    {"cp2", 2, [](TinyOptions& o) { o.context_parallel.size = 2; }},
    {"recomputed", 1,
     [](TinyOptions& o) { o.recompute.granularity = RecomputeGranularity::kFull; }},
    {"block by block", 1, [](TinyOptions& o) { o.block_order = BlockOrder::kVertical; }},
    {"dp2 tp2 pp2 zero3", 8, [](TinyOptions& o) {
       o.tensor_parallel.size = 2;
       o.pipeline.stages = 2;
       o.zero_stage = 3;
       o.micro_batch /= 2;
     }}};

/// Trains a few steps in each layout, clipped, beside one rank that does the same.
inline void check_layouts(TinyOptions options) {
  options.sequence = 20;
  options.micro_batch = 2;
  options.accumulation = 2;
  options.gradient_clipping = 0.5;
  options.steps = 4;
  for (const TrainedLayout& layout : kTrainedLayouts) {
    INFO(layout.name);
    TinyOptions cut = options;
    layout.change(cut);
    TinyOptions alone = options;
    alone.tied = cut.tied;
    const TinyRun single = train_tiny(alone);
    const std::vector<TinyRun> runs = train_ranks(layout.ranks, cut);
    check_plan(runs);
    CHECK(worst_relative(runs[0].losses, single.losses) < 1e-5);
    CHECK(worst_relative(runs[0].grad_norms, single.grad_norms) < 1e-4);
  }
}

}  // namespace dstrain::test
