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

// One rank's 1027 rows become 1032, so that rows of logits are aligned; two ranks' 514 stay.
TEST_CASE("a vocabulary that is padded for alignment trains as one that is not",
          "[parity][tensor]") {
  constexpr std::int64_t kVocabulary = 1027;
  const bool tied = GENERATE(false, true);
  ModelSpec model = tiny_model(Family::kGpt2);
  model.vocab_size = kVocabulary;
  model.tied_embeddings = tied;
  TinyOptions options{.family = Family::kGpt2, .tied = tied, .model = model};
  options.steps = 5;
  const TinyRun padded = train_tiny(options);
  options.tensor_parallel = {.size = 2};
  const std::vector<TinyRun> halves = train_ranks(2, options);
  CHECK(worst_relative(padded.losses, halves.front().losses) < 1e-5);
  CHECK(worst_relative(padded.grad_norms, halves.front().grad_norms) < 1e-4);
  // Checkpoints have no padding, although the memory has some.
  int tables = 0;
  for (const HeldPiece& held : padded.held) {
    if (held.piece.shape.rank() == 2 && held.piece.shape[0] == kVocabulary) {
      CHECK(held.piece.box_extent[0] == kVocabulary);
      tables += 1;
    }
  }
  CHECK(tables > 0);
  CHECK(padded.unit_numel.front() == (1032 + model.max_positions) * model.hidden_size);
}

}  // namespace
}  // namespace dstrain::test
