// Tensor and sequence parallelism against the single-rank run: dot products are split, so that the
// losses agree to rounding.
#include <cmath>

#include <catch2/catch.hpp>

#include "engine/comm/store.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TEST_CASE("tensor parallelism follows the single-rank run", "[parity][tensor]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const bool tied = GENERATE(false, true);
  const TinyRun reference = train_tiny(
      {.family = family, .tied = tied, .micro_batch = 4, .gradient_clipping = 0.5, .steps = 20});
  for (const int size : {2, 4}) {
    for (const bool sequence : {false, true}) {
      CAPTURE(tied, size, sequence);
      const std::vector<TinyRun> runs =
          train_ranks(size, {.family = family,
                             .tied = tied,
                             .micro_batch = 4,
                             .gradient_clipping = 0.5,
                             .tensor_parallel = {.size = size, .sequence_parallel = sequence},
                             .steps = 20});
      for (const TinyRun& run : runs) {
        CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
        CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-4);
        CHECK(run.arena_bytes == run.plan_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
