// Families whose blocks differ from GPT-2's and LLaMA's: every layout against one rank.
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

/// Two key/value heads, so that of four ranks two share one.
TinyOptions tiny_family(const std::string& model_type) {
  ModelSpec model = tiny_model(Family::kLlama);
  model.model_type = model_type;
  return {.model = model, .micro_batch = 4, .gradient_clipping = 0.5, .steps = 10};
}

TEST_CASE("Qwen3 and OLMo 2 over tensor-parallel ranks follow one rank", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE("qwen3", "olmo2"));
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
      }
    }
  }
}

TEST_CASE("Qwen3 and OLMo 2 in a pipeline give the bits of one rank", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE("qwen3", "olmo2"));
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

TEST_CASE("Qwen3 and OLMo 2 with all states cut give the bits of whole ones",
          "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE("qwen3", "olmo2"));
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

TEST_CASE("Qwen3 and OLMo 2 compute again what they kept", "[parity][families]") {
  TinyOptions options = tiny_family(GENERATE("qwen3", "olmo2"));
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
    }
  }
}

}  // namespace
}  // namespace dstrain::test
