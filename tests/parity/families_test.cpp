// Families whose blocks differ from GPT-2's and LLaMA's: every layout against one rank.
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

TEST_CASE("families over tensor-parallel ranks follow one rank", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE(from_range(kFamilies)));
  CAPTURE(options.model->model_type);
  const TinyRun reference = train_tiny(options);
  for (const int size : {2, 4}) {
    for (const bool sequence : {false, true}) {
      CAPTURE(size, sequence);
      options.tensor_parallel = {.size = size, .sequence_parallel = sequence};
      for (const TinyRun& run : train_ranks(size, options)) {
        CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
        CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-4);
        CHECK(run.arena_bytes == run.plan_bytes);
        CHECK(run.unplanned_traffic.empty());
      }
    }
  }
}

TEST_CASE("families in a pipeline give the bits of one rank", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE(from_range(kFamilies)));
  CAPTURE(options.model->model_type);
  options.gradient_clipping = 0.0;
  options.micro_batch = 1;
  options.accumulation = 4;
  const TinyRun reference = train_tiny(options);
  options.pipeline = {.stages = 2};
  for (const TinyRun& run : train_ranks(2, options)) {
    CHECK(run.losses == reference.losses);
    CHECK(run.arena_bytes == run.plan_bytes);
  }
}

// The table is then alone in its unit on both stages, and backward reads the norm without it.
TEST_CASE("a norm of the embedding beside a tied table follows one rank to rounding",
          "[parity][families]") {
  TinyOptions options = tiny_family("bloom");
  options.tied = true;
  options.gradient_clipping = 0.0;
  options.micro_batch = 1;
  options.accumulation = 4;
  const TinyRun reference = train_tiny(options);
  options.pipeline = {.stages = 2};
  for (const TinyRun& run : train_ranks(2, options)) {
    CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
    CHECK(run.unplanned_traffic.empty());
  }
  options.accumulation = 2;
  options.zero_stage = 3;
  for (const TinyRun& run : train_ranks(4, options)) {
    CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
    CHECK(run.arena_bytes == run.plan_bytes);
    CHECK(run.unplanned_traffic.empty());
  }
}

TEST_CASE("families with all states cut give the bits of whole ones", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE(from_range(kFamilies)));
  CAPTURE(options.model->model_type);
  options.gradient_clipping = 0.0;
  const std::vector<TinyRun> reference = train_ranks(2, options);
  options.zero_stage = 3;
  for (const TinyRun& run : train_ranks(2, options)) {
    CHECK(run.losses == reference.front().losses);
    CHECK(run.parameters == reference.front().parameters);
  }
  const TinyRun alone = train_tiny({.model = options.model, .micro_batch = 8, .steps = 10});
  CHECK(worst_relative(reference.front().losses, alone.losses) < 1e-5);
}

TEST_CASE("families compute again what they kept", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE(from_range(kFamilies)));
  CAPTURE(options.model->model_type);
  options.tensor_parallel = {.size = 2, .sequence_parallel = GENERATE(false, true)};
  const std::vector<TinyRun> reference = train_ranks(2, options);
  for (const RecomputeGranularity granularity :
       {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
    options.recompute = {.granularity = granularity};
    for (const TinyRun& run : train_ranks(2, options)) {
      CHECK(run.losses == reference.front().losses);
      CHECK(run.grad_norms == reference.front().grad_norms);
      CHECK(run.arena_bytes < reference.front().arena_bytes);
      CHECK(run.unplanned_traffic.empty());
    }
  }
}

}  // namespace
}  // namespace dstrain::test
