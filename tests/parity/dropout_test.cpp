// Dropout: the same elements in every layout, in backward as in forward, and none in evaluations.
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TinyOptions dropping(Family family) {
  ModelSpec model = tiny_model(family);
  model.num_layers = 4;
  return {.model = model,
          .sequence = 20,  // no multiple of 16: half of it begins within a block of random words
          .micro_batch = 8,
          .gradient_clipping = 0.5,
          .dropout = {.embedding = 0.1F, .residual = 0.2F, .attention = 0.3F},
          .steps = 5};
}

TEST_CASE("dropout gives one rank's losses in every layout", "[parity][dropout][traffic]") {
  struct Layout {
    const char* name;
    int ranks;
    TinyOptions options;
  };
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const TinyOptions one = dropping(family);
    const TinyRun reference = train_tiny(one);
    CHECK(reference.losses.back() < reference.losses.front());
    TinyOptions without = one;
    without.dropout = {};
    CHECK(train_tiny(without).losses.front() != reference.losses.front());
    std::vector<Layout> layouts;
    const auto add = [&](const char* name, int ranks, std::int64_t micro_batch,
                         std::int64_t accumulation, auto&& change) {
      TinyOptions options = one;
      options.micro_batch = micro_batch;
      options.accumulation = accumulation;
      change(options);
      layouts.push_back({name, ranks, options});
    };
    add("accumulation", 1, 2, 4, [](TinyOptions&) {});
    for (const int stage : {0, 1, 2, 3}) {
      add("dp 4", 4, 1, 2, [&](TinyOptions& o) { o.zero_stage = stage; });
    }
    add("tp 2", 2, 8, 1, [](TinyOptions& o) { o.tensor_parallel = {.size = 2}; });
    add("tp 2 with sequence parallelism", 2, 1, 8,
        [](TinyOptions& o) { o.tensor_parallel = {.size = 2, .sequence_parallel = true}; });
    add("pp 4", 4, 2, 4, [](TinyOptions& o) { o.pipeline.stages = 4; });
    add("pp 2, tp 2, dp 2, zero 3, recomputed", 8, 1, 4, [](TinyOptions& o) {
      o.pipeline.stages = 2;
      o.tensor_parallel = {.size = 2, .sequence_parallel = true};
      o.zero_stage = 3;
      o.recompute.granularity = RecomputeGranularity::kFull;
    });
    for (const Layout& layout : layouts) {
      CAPTURE(static_cast<int>(family), layout.name, layout.options.zero_stage);
      for (const TinyRun& run : train_ranks(layout.ranks, layout.options)) {
        CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
        CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
        CHECK(run.unplanned_traffic.empty());
        CHECK(run.arena_bytes == run.plan_bytes);
      }
    }
  }
}

TEST_CASE("what is computed again is dropped again", "[parity][dropout]") {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    TinyOptions options = dropping(Family::kGpt2);
    options.precision = precision;
    const TinyRun reference = train_tiny(options);
    for (const RecomputeGranularity granularity :
         {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
      options.recompute = {.granularity = granularity};
      const TinyRun run = train_tiny(options);
      CHECK(run.losses == reference.losses);
      CHECK(run.grad_norms == reference.grad_norms);
    }
  }
}

/// The loss of `sample` alone, and its gradient's norm.
EngineStep step_of(Engine& engine, std::int64_t sample, float learning_rate) {
  const auto vocabulary = engine.plan().model.vocab_size;
  const LoadBatch load = [&](std::int64_t /*first*/, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    synthetic_sample(sample, vocabulary, inputs, targets);
  };
  return engine.train_step(load, 0, {.learning_rate = learning_rate});
}

// A step of SGD against the gradient changes the loss by -rate · |gradient|², whatever is dropped,
// if backward drops what forward did.
TEST_CASE("the gradient is that of the loss with the same elements dropped", "[parity][dropout]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    TinyOptions options = dropping(family);
    options.micro_batch = 1;
    options.gradient_clipping = 0.0;
    options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.0};
    const auto world = make_local_rendezvous(1);
    const Config config = tiny_config(options, 1);
    const auto engine = make_tiny_engine(config, *world[0], nullptr);
    constexpr float kRate = 1e-3F;
    const EngineStep before = step_of(*engine, 3, kRate);
    const EngineStep after = step_of(*engine, 3, kRate);
    const double tokens = static_cast<double>(options.sequence);
    const double expected = -static_cast<double>(kRate) * std::pow(before.stats.grad_norm, 2);
    const double change = (after.local_loss_sum - before.local_loss_sum) / tokens;
    CAPTURE(static_cast<int>(family), before.local_loss_sum / tokens, expected, change);
    CHECK(change == Approx(expected).epsilon(0.03));
  }
}

TEST_CASE("another sample is dropped otherwise, and an evaluation not at all",
          "[parity][dropout]") {
  TinyOptions options = dropping(Family::kGpt2);
  options.micro_batch = 1;
  const auto world = make_local_rendezvous(1);
  const auto evaluated = [&](const TinyOptions& of) {
    const Config config = tiny_config(of, 1);
    const auto engine = make_tiny_engine(config, *world[0], nullptr);
    const LoadBatch load = [&](std::int64_t /*first*/, std::span<std::int32_t> inputs,
                               std::span<std::int32_t> targets) {
      synthetic_sample(5, config.model.vocab_size, inputs, targets);
    };
    return engine->evaluate(load, 0, 1).local_loss_sum;
  };
  TinyOptions without = options;
  without.dropout = {};
  CHECK(evaluated(options) == evaluated(without));

  const Config config = tiny_config(options, 1);
  const auto loss_at = [&](std::int64_t first_sample) {
    const auto engine = make_tiny_engine(config, *world[0], nullptr);
    const LoadBatch load = [&](std::int64_t /*first*/, std::span<std::int32_t> inputs,
                               std::span<std::int32_t> targets) {
      synthetic_sample(5, config.model.vocab_size, inputs, targets);
    };
    return engine->train_step(load, first_sample, {.learning_rate = 0.0F}).local_loss_sum;
  };
  CHECK(loss_at(0) == loss_at(0));
  CHECK(loss_at(0) != loss_at(1));
}

}  // namespace
}  // namespace dstrain::test
