// Pipelines against runs without: the same operations in the same order per block, so the same bits
// where nothing is summed over stages.
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

ModelSpec deep(Family family, int layers) {
  ModelSpec model = tiny_model(family);
  model.num_layers = layers;
  return model;
}

TEST_CASE("a pipeline gives the bits of a run without one, embeddings untied",
          "[parity][pipeline]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const Precision precision = GENERATE(Precision::kF32, Precision::kBF16);
  const TinyOptions options{.family = family,
                            .model = deep(family, 5),
                            .precision = precision,
                            .micro_batch = 1,
                            .accumulation = 4,
                            .steps = 6};
  const TinyRun reference = train_tiny(options);
  for (const int stages : {2, 4}) {
    for (const ScheduleKind schedule : {ScheduleKind::k1F1B, ScheduleKind::kGpipe}) {
      CAPTURE(stages, static_cast<int>(schedule));
      TinyOptions piped = options;
      piped.pipeline = {.stages = stages, .schedule = schedule};
      for (const TinyRun& run : train_ranks(stages, piped)) {
        CHECK(run.losses == reference.losses);
        CHECK(run.arena_bytes == run.plan_bytes);
      }
    }
  }
  TinyOptions interleaved = options;
  interleaved.pipeline = {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2};
  for (const TinyRun& run : train_ranks(2, interleaved)) {
    CHECK(run.losses == reference.losses);
  }
}

TEST_CASE("a tied table on two stages follows one table to rounding", "[parity][pipeline]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const TinyOptions options{.family = family,
                            .tied = true,
                            .model = deep(family, 4),
                            .micro_batch = 1,
                            .accumulation = 4,
                            .gradient_clipping = 0.5,
                            .steps = 20};
  const TinyRun reference = train_tiny(options);
  for (const int stages : {2, 4}) {
    TinyOptions piped = options;
    piped.pipeline = {.stages = stages};
    for (const TinyRun& run : train_ranks(stages, piped)) {
      CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
      CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
    }
  }
}

}  // namespace
}  // namespace dstrain::test
