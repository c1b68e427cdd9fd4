// Steps whose gradients are not finite: skipped and counted as DeepSpeed does, the loss scale
// following; and runs that stop because skipping does not help, without leaving a bad checkpoint.
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/optim/loss_scaler.h"
#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json with_fp16(const json& fp16, int stage) {
  json block = fp16;
  block["enabled"] = true;
  return {{"fp16", block},
          {"zero_optimization", {{"stage", stage}}},
          {"checkpoint", {{"interval", 1}}}};
}

/// The message of the NumericalError that a run must end with.
std::string refusal_of(const LoadedConfig& config, int ranks) {
  try {
    run(config, ranks);
  } catch (const NumericalError& error) {
    return error.what();
  }
  FAIL("the run did not stop");
  return "";
}

/// Makes a row of the token table not a number, on whichever rank it lies.
void poison_row(Engine& engine, std::int64_t token) {
  const std::int64_t width = engine.plan().blueprint.units()[0].params[0].shape[1];
  const Range owned = engine.plan().memory.owned(0);
  const auto master = engine.arena().master(0).as<float>();
  for (std::int64_t at = token * width; at < (token + 1) * width; ++at) {
    if (owned.begin <= at && at < owned.end) {
      master[static_cast<std::size_t>(at - owned.begin)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  engine.refresh_parameters();
}

TEST_CASE("fp16 follows fp32 within its rounding", "[parity][fp16]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "fp32", 8, 2), 2).step == 8);
  const auto fp32 = metrics_of(folder, "fp32");
  for (const int stage : {0, 1, 2, 3}) {
    const std::string name = "fp16-" + std::to_string(stage);
    CHECK(run(config_of(folder, name, 8, 2, with_fp16({{"loss_scale", 1024}}, stage)), 2).step ==
          8);
    const auto fp16 = metrics_of(folder, name);
    REQUIRE(fp16.size() == 8);
    for (std::size_t step = 0; step < 8; ++step) {
      CHECK(fp16[step]["skipped"] == 0);
      CHECK(fp16[step]["loss_scale"] == 1024.0);
      // 11 bits of mantissa: 5e-4 an operation, over a few dozen operations and 8 updates.
      CHECK(fp16[step]["loss"].get<double>() ==
            Approx(fp32[step]["loss"].get<double>()).epsilon(2e-3));
      CHECK(fp16[step]["grad_norm"].get<double>() ==
            Approx(fp32[step]["grad_norm"].get<double>()).epsilon(2e-2));
    }
  }
}

TEST_CASE("an overflow skips the step on every rank, and the scale comes down by the rules",
          "[parity][fp16]") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  const RunFolder folder;
  const json fp16{{"initial_scale_power", 30}, {"hysteresis", 3}, {"loss_scale_window", 2}};
  const LoadedConfig config = config_of(folder, "overflows", 24, 2, with_fp16(fp16, stage));
  CHECK(run(config, 2).step == 24);
  const auto lines = metrics_of(folder, "overflows");
  REQUIRE(lines.size() == 24);
  LossScaler scaler(config.config.loss_scale, stage > 0);
  std::int64_t skipped = 0;
  for (const json& line : lines) {
    CAPTURE(line.dump());
    const bool skips = line["skipped"] == 1;
    CHECK(line["loss_scale"] == scaler.scale());
    CHECK(line["grad_norm"].is_null() == skips);
    CHECK(line["tokens"] == line["step"].get<std::int64_t>() * 8 * 19);  // the data goes on
    static_cast<void>(scaler.after_step(skips));
    skipped += skips ? 1 : 0;
  }
  CHECK(lines.front()["skipped"] == 1);
  CHECK(lines.front()["loss"].get<double>() == Approx(lines[1]["loss"].get<double>()).epsilon(0.1));
  CHECK(lines.back()["loss"].get<double>() < lines.front()["loss"].get<double>());
  CHECK(skipped > 3);
  CHECK(skipped < 20);
  // Optimizer and schedule saw only the others.
  const auto latest = CheckpointStore(folder.path() / "overflows" / "checkpoints").latest();
  REQUIRE(latest);
  const TrainingState state = CheckpointStore::load(*latest, {});
  CHECK(state.step == 24);
  CHECK(state.skipped_steps == skipped);
  CHECK(state.optimizer_step == 24 - skipped);
  CHECK(state.scheduler_step == 24 - skipped);
}

TEST_CASE("after so many skips in a row the run stops, names the tensor, and saves nothing",
          "[fp16]") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  const RunFolder folder;
  json changes = with_fp16({{"loss_scale", 1e30}}, stage);
  changes["training"]["max_consecutive_skips"] = 3;
  const std::string message = refusal_of(config_of(folder, "stuck", 24, 2, changes), 2);
  CAPTURE(message);
  CHECK_THAT(message, Catch::StartsWith("step 3: "));
  CHECK_THAT(message, Catch::Contains("first in the gradient of "));
  CHECK_THAT(message, Catch::Contains(" on rank 0, micro-batch 0"));
  CHECK_THAT(message, Catch::Contains("3 steps in a row"));
  CHECK_THAT(message, Catch::Contains("there is no checkpoint yet"));
  CHECK_FALSE(fs::exists(folder.path() / "stuck" / "checkpoints"));
}

TEST_CASE("stages 1 to 3 stop at the smallest scale, stage 0 continues below no scale", "[fp16]") {
  const RunFolder folder;
  const json fp16{
      {"initial_scale_power", 41}, {"min_loss_scale", 1099511627776}, {"hysteresis", 1}};
  const std::string message = refusal_of(config_of(folder, "one", 9, 2, with_fp16(fp16, 1)), 2);
  CHECK_THAT(message, Catch::StartsWith("step 2: "));
  CHECK_THAT(message, Catch::Contains("the smallest allowed"));
  CHECK(run(config_of(folder, "zero", 9, 2, with_fp16(fp16, 0)), 2).step == 9);
  CHECK(metrics_of(folder, "zero").back()["loss_scale"] == 1099511627776.0);
}

TEST_CASE("parameters that are not finite are never saved", "[resume]") {
  const RunFolder folder;
  json changes{{"checkpoint", {{"interval", 1}}}, {"scheduler", nullptr}};
  LoadedConfig config = config_of(folder, "poisoned", 8, 2, changes);
  config.config.optimizer.learning_rate = 1e300;
  const std::string message = refusal_of(config, 2);
  CHECK_THAT(message, Catch::Contains("no longer finite"));
  CHECK_FALSE(fs::exists(folder.path() / "poisoned" / "checkpoints"));
}

TEST_CASE("a bad gradient is traced to its rank before any sum", "[zero]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int guilty : {0, 1, 3}) {
      CAPTURE(stage, guilty);
      const auto found = thread_world(4, [&](Rendezvous& rank) {
        const TinyOptions options{
            .family = Family::kGpt2, .micro_batch = 1, .accumulation = 2, .zero_stage = stage};
        const Config config = tiny_config(options, 4);
        Engine engine(make_run_plan(config, rank.world_size(), rank.world_rank()), rank,
                      make_cpu_backend(1), 1);
        const RunPlan& plan = engine.plan();
        // Token 3, which only the guilty rank's second micro-batch looks up, has a bad row.
        const auto bad_row = [&](std::int64_t first_sample) {
          return first_sample == plan.batch.first_sample(0, 1) && rank.world_rank() == guilty;
        };
        const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                                   std::span<std::int32_t> targets) {
          std::fill(inputs.begin(), inputs.end(), bad_row(first_sample) ? 3 : 5);
          std::fill(targets.begin(), targets.end(), 7);
        };
        poison_row(engine, 3);
        const StepParams params{.learning_rate = 1e-3};
        const EngineStep step = engine.train_step(load, 0, params);
        CHECK_FALSE(step.stats.updated);
        return engine.find_bad_gradient(load, 0, params);
      });
      for (const auto& bad : found) {
        REQUIRE(bad);
        CHECK(bad->rank == guilty);
        CHECK(bad->micro_batch == 1);
        CHECK(bad->tensor == "final_norm.weight");  // backward begins there
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
