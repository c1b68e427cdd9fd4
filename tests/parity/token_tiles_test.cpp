// Feed-forwards and logits in tiles over tokens, against all tokens at a time: the same losses and
// gradients but for the order in which those of weights are added up, and memory of one tile.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

std::int64_t bytes_of(const TinyRun& run, RegionKind kind) {
  std::int64_t bytes = 0;
  for (const Region& region : run.regions) {
    bytes += region.kind == kind ? region.bytes : 0;
  }
  return bytes;
}

void check_follows(const std::vector<TinyRun>& runs, const TinyRun& reference) {
  for (const TinyRun& run : runs) {
    CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
    CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
    CHECK(run.unplanned_traffic == "");
    CHECK(run.arena_spaces == run.plan_spaces);
  }
}

/// Plain, gated, with norms behind branches, and with branches side by side.
TEST_CASE("tiles of tokens train to the losses of all tokens at a time", "[parity][tiles]") {
  for (const std::string family : {"gpt2", "llama", "gemma2", "gpt_neox"}) {
    TinyOptions whole = tiny_family(family);
    whole.micro_batch = 4;
    whole.sequence = 16;
    whole.accumulation = 2;
    whole.gradient_clipping = 0.5;
    whole.steps = 10;
    const TinyRun reference = train_tiny(whole);
    CHECK(reference.losses.back() < reference.losses.front());
    for (const auto granularity : {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                   RecomputeGranularity::kFull}) {
      TinyOptions again = whole;
      again.recompute.granularity = granularity;
      const std::int64_t kept = bytes_of(train_tiny(again), RegionKind::kSaved);
      for (const std::int64_t tile : {1, 7, 32}) {  // 64 tokens: even tiles or not
        CAPTURE(family, granularity, tile);
        TinyOptions tiles = again;
        tiles.mlp_tile_tokens = tiles.loss_tile_tokens = tile;
        const TinyRun run = train_tiny(tiles);
        check_follows({run}, reference);
        const std::int64_t kept_now = bytes_of(run, RegionKind::kSaved);
        const bool keeps_any = granularity != RecomputeGranularity::kFull;
        CHECK((keeps_any ? kept_now < kept : kept_now == kept));
      }
      again.mlp_tile_tokens = 64;  // one tile: nothing changes
      const TinyRun one_tile = train_tiny(again);
      CHECK(one_tile.losses == reference.losses);
      CHECK(bytes_of(one_tile, RegionKind::kSaved) == kept);
    }
  }
}

TEST_CASE("tiles go with every way of sharing a step", "[parity][tiles]") {
  for (const std::string family : {"gpt2", "llama"}) {
    TinyOptions alone = tiny_family(family);
    alone.micro_batch = 4;
    alone.sequence = 16;
    alone.steps = 10;
    const TinyRun reference = train_tiny(alone);
    const auto check_over = [&](const char* name, int ranks, const auto& change) {
      CAPTURE(family, name);
      TinyOptions shared = alone;
      shared.mlp_tile_tokens = 6;
      shared.loss_tile_tokens = 5;
      change(shared);
      check_follows(train_ranks(ranks, shared), reference);
    };
    for (const int zero : {0, 1, 2, 3}) {
      check_over("data", 2, [&](TinyOptions& o) { o.micro_batch = 2, o.zero_stage = zero; });
    }
    check_over("tensor", 2, [](TinyOptions& o) { o.tensor_parallel.size = 2; });
    check_over("tensor, sequence parallel", 2, [](TinyOptions& o) {
      o.tensor_parallel = {.size = 2, .sequence_parallel = true};
      o.recompute.granularity = RecomputeGranularity::kFull;
    });
    check_over("shared sequences", 2, [](TinyOptions& o) { o.context_parallel.size = 2; });
    check_over("pipeline", 2, [](TinyOptions& o) {
      o.pipeline = {.stages = 2};
      o.micro_batch = 1;
      o.accumulation = 4;
    });
    check_over("vertical, stage 3", 2, [](TinyOptions& o) {
      o.micro_batch = 1;
      o.accumulation = 2;
      o.zero_stage = 3;
      o.block_order = BlockOrder::kVertical;
    });
  }
}

/// What a tile has rows for is planned, and nothing else of a feed-forward or of logits.
TEST_CASE("memory of tiles does not grow with the sequence", "[parity][tiles]") {
  const auto scratch_of = [](std::int64_t sequence) {
    TinyOptions options = tiny_family("llama");
    options.model->max_positions = 512;
    options.model->intermediate_size = 4096;
    options.model->vocab_size = 8192;
    options.sequence = sequence;
    options.micro_batch = 1;
    options.steps = 1;
    options.mlp_tile_tokens = options.loss_tile_tokens = 64;
    const TinyRun run = train_tiny(options);
    CHECK(run.arena_spaces == run.plan_spaces);
    return bytes_of(run, RegionKind::kSaved) + bytes_of(run, RegionKind::kScratch);
  };
  const std::int64_t of_256 = scratch_of(256);
  const std::int64_t of_512 = scratch_of(512);
  // A token more of the feed-forward takes 6 · 4096 numbers, of logits 8192.
  CHECK((of_512 - of_256) / 256 < 8192 * 4);
}

}  // namespace
}  // namespace dstrain::test
