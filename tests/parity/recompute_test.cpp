// Recomputation changes what is kept and nothing that is computed: every granularity gives the
// bits of "none", where each tensor is computed once.
#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

constexpr auto kSelective = RecomputeGranularity::kSelective;
constexpr auto kFull = RecomputeGranularity::kFull;

TinyOptions with(TinyOptions options,
                 RecomputeGranularity granularity,
                 std::optional<std::int64_t> layers = std::nullopt) {
  options.recompute = {.granularity = granularity, .layers = layers};
  return options;
}

std::int64_t saved_bytes(const TinyRun& run) {
  for (const Region& region : run.regions) {
    if (region.kind == RegionKind::kSaved) {
      return region.bytes;
    }
  }
  return 0;
}

void check_same_bits(const std::vector<TinyRun>& runs, const std::vector<TinyRun>& reference) {
  REQUIRE(runs.size() == reference.size());
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    CHECK(runs[rank].losses == reference[rank].losses);
    CHECK(runs[rank].grad_norms == reference[rank].grad_norms);
    CHECK((runs[rank].parameters == reference[rank].parameters));  // too many to print
    CHECK(saved_bytes(runs[rank]) < saved_bytes(reference[rank]));
    CHECK(runs[rank].arena_bytes == runs[rank].plan_bytes);
  }
}

/// Three blocks, so that one's shared buffers are overwritten by a block before and one after.
ModelSpec three_blocks(Family family) {
  ModelSpec model = tiny_model(family);
  model.num_layers = 3;
  return model;
}

TEST_CASE("every granularity trains to the bits of none", "[parity][recompute]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const Precision precision = GENERATE(Precision::kF32, Precision::kBF16, Precision::kF16);
  const bool tied = GENERATE(false, true);
  const TinyOptions options{.tied = tied,
                            .model = three_blocks(family),
                            .precision = precision,
                            .micro_batch = 2,
                            .accumulation = 3,
                            .gradient_clipping = 0.5,
                            .loss_scale = precision == Precision::kF16 ? 128.0 : 1.0,
                            .steps = 5};
  const std::vector<TinyRun> reference = train_ranks(1, options);
  CHECK(reference[0].losses.back() < reference[0].losses.front());
  for (const RecomputeGranularity granularity : {kSelective, kFull}) {
    CAPTURE(family, precision, tied, granularity);
    check_same_bits(train_ranks(1, with(options, granularity)), reference);
    check_same_bits(train_ranks(1, with(options, granularity, 2)), reference);
  }
}

TEST_CASE("the same over two ranks, with and without sharded parameters",
          "[parity][recompute][zero]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const Precision precision = GENERATE(Precision::kF32, Precision::kBF16, Precision::kF16);
  const bool tied = GENERATE(false, true);
  for (const int stage : {0, 3}) {
    const TinyOptions options{.tied = tied,
                              .model = three_blocks(family),
                              .precision = precision,
                              .micro_batch = 2,
                              .accumulation = 2,
                              .zero_stage = stage,
                              .loss_scale = precision == Precision::kF16 ? 128.0 : 1.0,
                              .steps = 4};
    const std::vector<TinyRun> reference = train_ranks(2, options);
    for (const RecomputeGranularity granularity : {kSelective, kFull}) {
      CAPTURE(family, precision, tied, stage, granularity);
      check_same_bits(train_ranks(2, with(options, granularity)), reference);
    }
  }
}

/// Losses of an evaluation before, between and after two steps.
std::vector<double> evaluate_between_steps(const TinyOptions& options) {
  const auto world = make_local_rendezvous(1);
  const Config config = tiny_config(options, 1);  // outlives the engine
  Engine engine(make_run_plan(config, 1, 0), *world[0], make_cpu_backend(1), 1);
  const auto length = static_cast<std::size_t>(engine.plan().batch.sequence);
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    for (std::size_t row = 0; row * length < inputs.size(); ++row) {
      synthetic_sample(first_sample + static_cast<std::int64_t>(row),
                       tiny_model(options.family).vocab_size, inputs.subspan(row * length, length),
                       targets.subspan(row * length, length));
    }
  };
  std::vector<double> losses{engine.evaluate(load, 1000).local_loss_sum};
  for (int step = 0; step < 2; ++step) {
    engine.train_step(load, step * options.micro_batch,
                      {.learning_rate = 1e-2, .update = step + 1});
    losses.push_back(engine.evaluate(load, 1000).local_loss_sum);
  }
  return losses;
}

TEST_CASE("evaluating between steps gives the losses of none", "[parity][recompute]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const TinyOptions options{.family = family, .precision = Precision::kBF16};
  const std::vector<double> reference = evaluate_between_steps(options);
  CHECK(reference[2] < reference[0]);
  for (const RecomputeGranularity granularity : {kSelective, kFull}) {
    CHECK(evaluate_between_steps(with(options, granularity)) == reference);
  }
}

TEST_CASE("the arena holds the plan's bytes, and full keeps less than selective",
          "[parity][recompute][memory]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const TinyOptions options{.model = three_blocks(family), .steps = 1};
    const TinyRun none = train_tiny(options);
    const TinyRun one_selective = train_tiny(with(options, kSelective, 1));
    const TinyRun selective = train_tiny(with(options, kSelective));
    const TinyRun full = train_tiny(with(options, kFull));
    for (const TinyRun& run : {none, one_selective, selective, full}) {
      CHECK(run.arena_bytes == run.plan_bytes);
    }
    CHECK(saved_bytes(one_selective) < saved_bytes(none));
    CHECK(saved_bytes(selective) < saved_bytes(one_selective));
    CHECK(saved_bytes(full) < saved_bytes(selective));
    // Shared buffers for one block cost less than what three no longer keep.
    CHECK(selective.plan_bytes < none.plan_bytes);
    CHECK(full.plan_bytes < selective.plan_bytes);
  }
}

}  // namespace
}  // namespace dstrain::test
