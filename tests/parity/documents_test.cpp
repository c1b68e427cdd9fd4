// Several documents in one sequence: each as if it were alone, whatever the layout, and a loss that
// is the mean over the targets that count, on whichever rank they are.
#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/ignored_target.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

constexpr std::int32_t kEnd = 3;

ModelSpec model_for(Family family, std::int64_t positions) {
  ModelSpec model = tiny_model(family);
  model.max_positions = positions;
  return model;
}

struct Steps {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<float> parameters;
};

/// Trains on documents of `length` tokens, kEnd the last of each, that lie one behind the other in
/// all micro-batches, whatever the sequences are.
Steps train_documents(const TinyOptions& options, std::size_t length) {
  const Config config = tiny_config(options, 1);
  const auto world = make_local_rendezvous(1);
  const auto engine = make_tiny_engine(config, *world[0], nullptr);
  const auto tokens = static_cast<std::size_t>(options.micro_batch * options.sequence);
  const auto documents = static_cast<std::int64_t>(tokens / length);
  Steps steps;
  for (int step = 0; step < options.steps; ++step) {
    const LoadBatch load = [&](std::int64_t /*first_sample*/, std::span<std::int32_t> inputs,
                               std::span<std::int32_t> targets) {
      for (std::size_t at = 0; at < tokens; at += length) {
        const std::int64_t document = step * documents + static_cast<std::int64_t>(at / length);
        synthetic_sample(document, config.model.vocab_size, inputs.subspan(at, length),
                         targets.subspan(at, length));
        std::replace(inputs.begin() + static_cast<std::ptrdiff_t>(at),
                     inputs.begin() + static_cast<std::ptrdiff_t>(at + length), kEnd, kEnd + 1);
        inputs[at + length - 1] = kEnd;
      }
    };
    const EngineStep result =
        engine->train_step(load, 0, {.learning_rate = options.learning_rate, .update = step + 1});
    steps.losses.push_back(result.local_loss_sum / static_cast<double>(tokens));
    steps.grad_norms.push_back(result.stats.grad_norm);
  }
  for (int unit = 0; unit < engine->plan().shards.num_units(); ++unit) {
    const std::vector<float> master = whole_master(*engine, unit);
    steps.parameters.insert(steps.parameters.end(), master.begin(), master.end());
  }
  return steps;
}

/// The same documents, three in each sequence.
TinyOptions packed_of(const TinyOptions& alone) {
  TinyOptions packed = alone;
  packed.sequence = 3 * alone.sequence;
  packed.micro_batch = alone.micro_batch / 3;
  packed.documents = {.end = kEnd, .attention = true};
  return packed;
}

TEST_CASE("documents in one sequence train as documents in sequences of their own",
          "[parity][documents]") {
  ModelSpec falling = tiny_model(Family::kLlama);
  falling.position = PositionKind::kAlibi;
  for (ModelSpec model : {tiny_model(Family::kGpt2), tiny_model(Family::kLlama), falling}) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const std::int64_t length : {19, 64}) {
        CAPTURE(static_cast<int>(model.position), static_cast<int>(precision), length);
        model.max_positions = 3 * length;
        const TinyOptions alone{.model = model,
                                .precision = precision,
                                .sequence = length,
                                .micro_batch = 6,
                                .steps = 5};
        TinyOptions packed = packed_of(alone);
        const auto tokens = static_cast<std::size_t>(length);
        const Steps expected = train_documents(alone, tokens);
        const Steps steps = train_documents(packed, tokens);
        CHECK(expected.losses.back() < expected.losses.front());
        if (length % 64 == 0) {  // attention's tiles: the same sums in the same order
          CHECK(steps.losses == expected.losses);
          CHECK(steps.parameters == expected.parameters);
        } else {
          const double bound = precision == Precision::kF32 ? 1e-6 : 1e-2;
          CHECK(worst_relative(steps.losses, expected.losses) < bound);
          CHECK(worst_relative(steps.grad_norms, expected.grad_norms) < 10 * bound);
        }
        packed.documents.attention = false;
        CHECK(train_documents(packed, tokens).losses != steps.losses);
      }
    }
  }
}

/// 64: attention's tiles, so that the same is summed in the same order; 19: borders within them.
TEST_CASE("documents in one sequence are documents alone, in every family",
          "[parity][documents][families]") {
  int met = 0;
  for (const std::string& name : kFamilies) {
    for (const std::int64_t length : {19, 64}) {
      if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
      CAPTURE(name, length);
      TinyOptions alone = tiny_family(name);
      alone.model->max_positions = 3 * length;
      alone.model->adds_balance_loss = false;  // of sequences, whatever documents they hold
      alone.sequence = length;
      alone.micro_batch = 6;
      alone.steps = 5;
      const TinyOptions packed = packed_of(alone);
      const auto tokens = static_cast<std::size_t>(length);
      const Steps expected = train_documents(alone, tokens);
      const Steps steps = train_documents(packed, tokens);
      CHECK(expected.losses.back() < expected.losses.front());
      if (length == 64) {
        CHECK(steps.losses == expected.losses);
        CHECK(steps.parameters == expected.parameters);
      } else {
        CHECK(steps.losses[0] == Approx(expected.losses[0]).epsilon(1e-6));
        CHECK(steps.grad_norms[0] == Approx(expected.grad_norms[0]).epsilon(1e-6));
        // From there on AdamW divides gradients that are almost nothing by themselves.
        CHECK(worst_relative(steps.losses, expected.losses) < 1e-5);
      }
    }
  }
}

/// Documents of uneven lengths, so that targets that count are shared out unevenly.
TinyOptions masked(Family family) {
  return {.model = model_for(family, 48),
          .sequence = 48,
          .micro_batch = 2,
          .gradient_clipping = 0.5,
          .documents = {.end = kEnd, .attention = true, .masks_borders = true},
          .steps = 5};
}

TEST_CASE("targets behind a document's end do not count, and the others are what is divided by",
          "[parity][documents]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const TinyOptions options = masked(family);
    TinyOptions by_hand = options;
    by_hand.documents.masks_borders = false;
    const Config config = tiny_config(options, 1);
    const auto tokens = static_cast<std::size_t>(options.micro_batch * options.sequence);
    std::int64_t counted = 0;
    const auto step_of = [&](const TinyOptions& of, bool ignores) {
      const auto world = make_local_rendezvous(1);
      const auto engine = make_tiny_engine(tiny_config(of, 1), *world[0], nullptr);
      const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                                 std::span<std::int32_t> targets) {
        synthetic_sample(first_sample, config.model.vocab_size, inputs, targets);
        inputs[20] = inputs[33] = inputs[80] = kEnd;
        counted =
            static_cast<std::int64_t>(tokens) - std::count(inputs.begin(), inputs.end(), kEnd);
        for (std::size_t n = 0; ignores && n < tokens; ++n) {
          targets[n] = inputs[n] == kEnd ? kIgnoredTarget : targets[n];
        }
      };
      return engine->train_step(load, 0, {.learning_rate = 1e-3});
    };
    const EngineStep step = step_of(options, false);
    const EngineStep reference = step_of(by_hand, true);
    REQUIRE(counted < static_cast<std::int64_t>(tokens));
    CHECK(step.counted == counted);
    CHECK(reference.counted == static_cast<std::int64_t>(tokens));
    CHECK(step.local_loss_sum == reference.local_loss_sum);
    CHECK(step.stats.grad_norm * static_cast<double>(counted) ==
          Approx(reference.stats.grad_norm * static_cast<double>(tokens)).epsilon(1e-6));
  }
}

TEST_CASE("documents and masks give one rank's losses in every layout",
          "[parity][documents][traffic]") {
  struct Layout {
    const char* name;
    int ranks;
    TinyOptions options;
  };
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    TinyOptions one = masked(family);
    one.micro_batch = 8;
    const TinyRun reference = train_tiny(one);
    CHECK(reference.losses.back() < reference.losses.front());
    TinyOptions without = one;
    without.documents.masks_borders = false;
    CHECK(train_tiny(without).losses != reference.losses);
    std::vector<Layout> layouts;
    const auto add = [&](const char* name, int ranks, std::int64_t micro_batch,
                         std::int64_t accumulation, auto&& change) {
      TinyOptions options = masked(family);
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
    add("tp 2 with sequence parallelism", 2, 4, 2,
        [](TinyOptions& o) { o.tensor_parallel = {.size = 2, .sequence_parallel = true}; });
    add("pp 2", 2, 2, 4, [](TinyOptions& o) { o.pipeline.stages = 2; });
    add("pp 2, tp 2, dp 2, zero 3, recomputed", 8, 1, 4, [](TinyOptions& o) {
      o.pipeline.stages = 2;
      o.tensor_parallel = {.size = 2};
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

}  // namespace
}  // namespace dstrain::test
