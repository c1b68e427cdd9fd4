// Feed-forwards and logits in tiles over tokens, against all tokens at a time: the same losses and
// gradients but for the order in which those of weights are added up, and memory of one tile.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/adapters.h"
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

TEST_CASE("tiles of tokens train adapters to the losses of all tokens at a time",
          "[parity][tiles][adapters]") {
  for (const std::string family : {"gpt2", "llama"}) {
    TinyOptions whole = tiny_family(family);
    whole.adapters = {.rank = 3, .alpha = 6.0, .target_modules = {kAllLinear}};
    whole.micro_batch = 4;
    whole.sequence = 16;
    whole.steps = 10;
    const TinyRun reference = train_tiny(whole);
    CHECK(reference.losses.back() < reference.losses.front());
    for (const std::int64_t tile : {7, 32}) {
      CAPTURE(family, tile);
      TinyOptions tiles = whole;
      tiles.mlp_tile_tokens = tiles.loss_tile_tokens = tile;
      check_follows({train_tiny(tiles)}, reference);
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

void check_routed_alike(const std::vector<LayerRouting>& layers,
                        const std::vector<LayerRouting>& expected) {
  REQUIRE(layers.size() == expected.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    CHECK(layers[i].chosen == expected[i].chosen);
    CHECK(layers[i].tokens == expected[i].tokens);
    REQUIRE(layers[i].balance_loss.has_value() == expected[i].balance_loss.has_value());
    if (expected[i].balance_loss) {
      CHECK(*layers[i].balance_loss == Approx(*expected[i].balance_loss).epsilon(1e-6));
    }
  }
}

/// Experts order, exchange and compute rows tile by tile.
TEST_CASE("tiles of experts train to the losses of all tokens at a time",
          "[parity][tiles][experts]") {
  for (const std::string family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    TinyOptions alone = tiny_experts(family);
    alone.micro_batch = 4;
    alone.sequence = 16;
    alone.accumulation = 2;
    alone.steps = 10;
    const TinyRun reference = train_tiny(alone);
    CHECK(reference.losses.back() < reference.losses.front());
    const auto check_over = [&](const char* name, int ranks, std::int64_t tile,
                                const auto& change) {
      for (const auto granularity : {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                                     RecomputeGranularity::kFull}) {
        CAPTURE(family, name, tile, granularity);
        TinyOptions shared = alone;
        shared.recompute.granularity = granularity;
        shared.mlp_tile_tokens = tile;
        change(shared);
        const std::vector<TinyRun> runs = train_ranks(ranks, shared);
        check_follows(runs, reference);
        for (const TinyRun& run : runs) {
          check_routed_alike(run.routing.at(0), reference.routing.at(0));
        }
      }
    };
    const auto nothing = [](TinyOptions&) {};
    check_over("alone", 1, 1, nothing);
    check_over("alone", 1, 7, nothing);
    check_over("alone", 1, 32, nothing);
    check_over("experts over 2", 2, 7, [](TinyOptions& o) {
      o.micro_batch = 2;
      o.expert_parallel.size = 2;
      o.zero_stage = 1;
    });
    check_over("experts over 2, shared sequences, stage 3", 4, 5, [](TinyOptions& o) {
      o.micro_batch = 2;
      o.context_parallel.size = 2;
      o.expert_parallel.size = 2;
      o.zero_stage = 3;
    });
    check_over("tensor, pipeline", 4, 6, [](TinyOptions& o) {
      o.micro_batch = 2;
      o.accumulation = 4;
      o.tensor_parallel.size = 2;
      o.pipeline.stages = 2;
    });
    check_over("whole experts of own tokens over 2", 2, 9, [](TinyOptions& o) {
      o.tensor_parallel = {.size = 2, .sequence_parallel = true};
      o.expert_parallel = {.size = 2, .tensor_size = 1};
    });
  }
}

/// All tokens of all ranks may choose one rank's experts: buffers for them are planned.
TEST_CASE("tiles bound the worst case of routing without drops", "[parity][tiles][experts]") {
  TinyOptions options = tiny_experts("mixtral");
  options.micro_batch = 4;
  options.sequence = 64;
  options.model->max_positions = 64;
  options.steps = 2;
  options.expert_parallel.size = 4;
  const auto bytes = [&](std::int64_t tile) {
    options.mlp_tile_tokens = tile;
    const TinyRun run = train_ranks(4, options).front();
    CHECK(run.arena_spaces == run.plan_spaces);
    return bytes_of(run, RegionKind::kSaved) + bytes_of(run, RegionKind::kScratch);
  };
  const std::int64_t whole = bytes(0);
  const std::int64_t of_32 = bytes(32);
  const std::int64_t of_16 = bytes(16);
  // A row that is received and computed: x as received and in order, pre, hidden and their
  // gradients, the result; all ranks' tokens may choose both experts of a rank.
  const ModelSpec& model = *options.model;
  const std::int64_t row = 4 * (3 * model.hidden_size + 6 * model.intermediate_size);
  CHECK(whole - of_32 > (256 - 32) * 8 * row);
  CHECK(of_32 - of_16 > 16 * 8 * row);
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
