// Experts that take no more than their capacity, in every way of sharing a step, against one rank.
// What they compute is held to PyTorch by golden_test (capacity-tiny).
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

/// 19 tokens, 3 of 8 experts for each: ceil(19 · 3 / 8 · 0.8) = 6 tokens of a sequence an expert.
TinyOptions dropping(const std::string& family) {
  TinyOptions options = tiny_experts(family);
  options.steps = 6;
  options.expert_capacity_factor = 0.8;
  return options;
}

std::int64_t dropped_of(const std::vector<LayerRouting>& layers) {
  return dropped_choices(layers).value().count;
}

void check_follows(const std::vector<TinyRun>& runs, const TinyRun& reference) {
  for (const TinyRun& run : runs) {
    CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
    CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
    CHECK(run.unplanned_traffic == "");
    CHECK(run.arena_spaces == run.plan_spaces);
    for (std::size_t step = 0; step < run.routing.size(); ++step) {
      REQUIRE(run.routing[step].size() == reference.routing[step].size());
      for (std::size_t i = 0; i < run.routing[step].size(); ++i) {
        CHECK(run.routing[step][i].chosen == reference.routing[step][i].chosen);
        CHECK(run.routing[step][i].dropped == reference.routing[step][i].dropped);
      }
    }
  }
}

TEST_CASE("an expert takes the first tokens of a sequence, whichever ranks share the step",
          "[parity][experts]") {
  int met = 0;
  for (const std::string family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    const TinyOptions alone = dropping(family);
    const TinyRun reference = train_tiny(alone);
    CHECK(reference.losses.back() < reference.losses.front());
    // At least those that an even router would have to drop.
    const auto layers = static_cast<std::int64_t>(reference.routing[0].size());
    CHECK(dropped_of(reference.routing[0]) >= layers * 8 * (19 * 3 - 8 * 6));
    const auto follows = [&](const char* layout, int ranks, const auto& change) {
      if (met++ % testing::one_in_if_sanitized(4) != 0) return;
      CAPTURE(family, layout);
      TinyOptions shared = alone;
      change(shared);
      check_follows(train_ranks(ranks, shared), reference);
    };
    follows("micro-batches", 1, [](TinyOptions& o) { o.micro_batch = 1, o.accumulation = 8; });
    follows("computed again", 1,
            [](TinyOptions& o) { o.recompute.granularity = RecomputeGranularity::kFull; });
    follows("selective", 1,
            [](TinyOptions& o) { o.recompute.granularity = RecomputeGranularity::kSelective; });
    follows("tensor", 2,
            [](TinyOptions& o) { o.tensor_parallel = {.size = 2, .sequence_parallel = false}; });
    follows("pipeline", 2, [](TinyOptions& o) {
      o.pipeline = {.stages = 2};
      o.micro_batch = 2;
      o.accumulation = 4;
    });
    for (const int zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      follows("data", 2, [&](TinyOptions& o) { o.micro_batch = 4, o.zero_stage = zero; });
      for (const int size : {2, 4}) {
        follows("other experts", size, [&](TinyOptions& o) {
          o.micro_batch = 8 / size;
          o.zero_stage = zero;
          o.expert_parallel.size = size;
        });
      }
      follows("other experts, tensor, computed again", 4, [&](TinyOptions& o) {
        o.micro_batch = 4;
        o.zero_stage = zero;
        o.expert_parallel.size = 2;
        o.tensor_parallel = {.size = 2, .sequence_parallel = true};
        o.recompute.granularity = RecomputeGranularity::kFull;
      });
    }
  }
}

/// A capacity of 18 of 19 tokens, which no expert reaches.
TEST_CASE("an expert that is never full changes nothing, bit for bit", "[parity][experts]") {
  for (const int ranks : {1, 2}) {
    TinyOptions all = dropping("mixtral");
    all.micro_batch = 8 / ranks;
    all.expert_parallel.size = ranks;
    all.expert_capacity_factor = std::nullopt;
    TinyOptions most = all;
    most.expert_capacity_factor = 2.5;
    const std::vector<TinyRun> expected = train_ranks(ranks, all);
    const std::vector<TinyRun> runs = train_ranks(ranks, most);
    for (std::size_t rank = 0; rank < runs.size(); ++rank) {
      CHECK(dropped_of(runs[rank].routing.back()) == 0);
      CHECK(runs[rank].losses == expected[rank].losses);
      CHECK(runs[rank].grad_norms == expected[rank].grad_norms);
      CHECK(runs[rank].parameters == expected[rank].parameters);
    }
    CHECK_FALSE(dropped_choices(expected[0].routing.back()).has_value());
  }
}

/// All tokens choose the first three of eight experts.
TEST_CASE("memory holds the rows that experts take, however tokens choose", "[parity][experts]") {
  for (const int ranks : {1, 2, 4}) {
    TinyOptions options = dropping("mixtral");
    options.model->initializer_range = 0.0F;
    options.micro_batch = 8 / ranks;
    options.expert_parallel.size = ranks;
    options.steps = 1;
    const std::vector<TinyRun> runs = train_ranks(ranks, options);
    TinyOptions all = options;
    all.expert_capacity_factor = std::nullopt;
    const TinyRun dropless = train_ranks(ranks, all).front();
    for (const TinyRun& run : runs) {
      CHECK(run.arena_bytes == run.plan_bytes);
      CHECK(run.arena_bytes < dropless.arena_bytes);
      for (const LayerRouting& layer : run.routing.at(0)) {
        CHECK(layer.dropped == 3 * 8 * (19 - 6));
        CHECK(layer.chosen.front() == 8 * 19);
        CHECK(layer.chosen.back() == 0);
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
