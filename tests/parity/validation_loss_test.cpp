// The validation loss is a mean over the same samples whatever the ranks: compared with a loop over
// these samples, one at a time.
#include <catch2/catch.hpp>

#include "engine/train/evaluation.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

struct Layout {
  const char* name;
  int ranks;
  json changes;
};

BatchLoader validation_data(const Config& config) {
  return {config.data, config.data.validation, config.model.vocab_size, config.training.seed};
}

double loss_of(const RunFolder& folder, const Layout& layout, std::int64_t batches) {
  const LoadedConfig loaded = config_of(folder, "run", 1, layout.ranks, layout.changes);
  const std::vector<double> by_rank = thread_world(layout.ranks, [&](Rendezvous& rank) {
    Engine engine(make_run_plan(loaded.config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    return validation_loss(engine, validation_data(loaded.config), batches).loss;
  });
  for (const double loss : by_rank) {
    CHECK(loss == by_rank.front());  // all ranks know it
  }
  return by_rank.front();
}

/// The mean over samples 0 ... samples - 1, one forward each.
double mean_of_single_samples(const RunFolder& folder, std::int64_t samples) {
  const LoadedConfig loaded =
      config_of(folder, "single", 1, 1,
                {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", "auto"}});
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(loaded.config, 1, 0), *world[0], make_cpu_backend(1), 1);
  const BatchLoader data = validation_data(loaded.config);
  const LoadBatch load = [&](std::int64_t first, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    data.load(first, inputs, targets);
  };
  double sum = 0.0;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    sum += engine.evaluate(load, sample).local_loss_sum;
  }
  return sum / static_cast<double>(samples * loaded.config.data.sequence_length);
}

TEST_CASE("the validation loss is over the same samples in any layout", "[parity]") {
  const RunFolder folder;
  const json automatic = {{"train_batch_size", 12}, {"gradient_accumulation_steps", "auto"}};
  const auto with = [&](json changes) {
    json all = automatic;
    all.merge_patch(changes);
    return all;
  };
  const Layout layouts[] = {
      {"one rank, micro-batches of 4", 1, with({{"train_micro_batch_size_per_gpu", 4}})},
      {"one rank, micro-batches of 12", 1, with({{"train_micro_batch_size_per_gpu", 12}})},
      {"dp 3", 3, with({{"train_micro_batch_size_per_gpu", 2}})},
      {"dp 6, zero 3", 6,
       with({{"train_micro_batch_size_per_gpu", 2}, {"zero_optimization", {{"stage", 3}}}})},
      {"tp 2 with sequence parallelism, dp 2", 4,
       with({{"train_micro_batch_size_per_gpu", 6},
             {"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}})},
      {"pp 2, dp 2", 4,
       with({{"train_micro_batch_size_per_gpu", 1}, {"pipeline", {{"stages", 2}}}})},
      {"pp 2, tp 2, zero 1", 4,
       with({{"train_micro_batch_size_per_gpu", 6},
             {"pipeline", {{"stages", 2}}},
             {"tensor_parallel", {{"size", 2}}},
             {"zero_optimization", {{"stage", 1}}}})},
  };
  // 2999 tokens after the first are 157 windows of 19, a prime number: no layout divides them.
  constexpr std::int64_t kWindows = 157;
  const double two_batches = mean_of_single_samples(folder, 24);
  const double all_windows = mean_of_single_samples(folder, kWindows);
  REQUIRE(two_batches != all_windows);
  for (const Layout& layout : layouts) {
    INFO(layout.name);
    CHECK(loss_of(folder, layout, 2) == Approx(two_batches).epsilon(1e-6).margin(0));
    CHECK(loss_of(folder, layout, 14) == Approx(all_windows).epsilon(1e-6).margin(0));
  }
}

}  // namespace
}  // namespace dstrain::test
