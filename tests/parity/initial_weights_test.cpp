// Runs that start from weights: they must begin where PyTorch's began (tests/golden), whatever the
// layout, and never look at the weights again once they have a checkpoint.
#include "engine/train/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <regex>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/model/init.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/golden_model.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Ten steps and the loss after them, over all ranks.
std::vector<double> losses_from(const GoldenModel& golden, const LoadedConfig& loaded, int ranks) {
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    const auto sequence = static_cast<std::int64_t>(loaded.config.data.sequence_length);
    const std::int64_t batch = first_sample / golden.batch();
    const std::int64_t skip = first_sample % golden.batch() * sequence;
    const std::vector<std::int32_t> x = golden.inputs(batch);
    const std::vector<std::int32_t> y = golden.targets(batch);
    std::copy_n(x.begin() + skip, inputs.size(), inputs.begin());
    std::copy_n(y.begin() + skip, targets.size(), targets.begin());
  };
  const auto by_rank = thread_world(ranks, [&](Rendezvous& rank) {
    Engine engine(make_run_plan(loaded.config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    start_from_weights(loaded.config, engine);
    const BatchPlan& batch = engine.plan().batch;
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 10; ++step) {
      losses.push_back(
          engine
              .train_step(load, step * golden.batch(),
                          {.learning_rate = 1e-3, .update = step + 1, .gradient_clipping = 1.0})
              .local_loss_sum);
    }
    losses.push_back(
        engine.evaluate(load, batch.first_sample(10 * golden.batch(), 0)).local_loss_sum);
    return losses;
  });
  std::vector<double> losses(11, 0.0);
  for (const std::vector<double>& of_rank : by_rank) {
    for (std::size_t step = 0; step < losses.size(); ++step) {
      losses[step] +=
          of_rank[step] / static_cast<double>(golden.batch() * loaded.config.data.sequence_length);
    }
  }
  return losses;
}

struct Layout {
  std::string model;
  int ranks = 1;
  json changes = json::object();
};

TEST_CASE("a run that starts from a Hugging Face folder has PyTorch's losses, in any layout",
          "[parity][golden]") {
  const auto layout = GENERATE(
      Layout{"gpt2-tiny"}, Layout{"llama-tiny"}, Layout{"qwen2-tiny"}, Layout{"llama3-rope-tiny"},
      Layout{"qwen2-tiny",
             4,
             {{"train_micro_batch_size_per_gpu", 1},
              {"tensor_parallel", {{"size", 2}}},
              {"zero_optimization", {{"stage", 3}}}}},
      Layout{"llama3-rope-tiny",
             4,
             {{"train_micro_batch_size_per_gpu", 1},
              {"tensor_parallel", {{"size", 2}}},
              {"zero_optimization", {{"stage", 3}}}}},
      Layout{"gpt2-tiny",
             6,
             {{"train_micro_batch_size_per_gpu", 4},
              {"tensor_parallel", {{"size", 3}, {"sequence_parallel", true}}},
              {"zero_optimization", {{"stage", 3}}}}},
      // Each rank reads the experts that are its own, or its part of all.
      Layout{"deepseek-v2-lite-tiny",
             2,
             {{"train_micro_batch_size_per_gpu", 1},
              {"expert_parallel", {{"size", 2}}},
              {"zero_optimization", {{"stage", 3}}}}},
      Layout{"gpt-oss-tiny",
             4,
             {{"train_micro_batch_size_per_gpu", 1},
              {"tensor_parallel", {{"size", 2}}},
              {"expert_parallel", {{"size", 2}}},
              {"zero_optimization", {{"stage", 1}}}}});
  INFO(layout.model << " on " << layout.ranks << " ranks");
  const GoldenModel golden(layout.model);
  json changes = layout.changes;
  changes["model"] = golden.folder();
  const LoadedConfig loaded = golden.config("fp32", layout.ranks, changes);
  REQUIRE(loaded.config.initial_weights == golden.folder());
  const std::vector<double> expected = golden.losses();
  const std::vector<double> losses = losses_from(golden, loaded, layout.ranks);
  REQUIRE(expected.size() == losses.size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    CHECK(losses[step] == Approx(expected[step]).epsilon(1e-5).margin(0));
  }
}

TEST_CASE("the list of a model's tensors is what the layers declare", "[parity][checkpoint]") {
  for (const Config& config : {tiny_config({.family = Family::kGpt2, .tied = true}, 1),
                               tiny_config({.family = Family::kLlama, .tied = true}, 1),
                               tiny_config({.family = Family::kLlama, .tied = false}, 1),
                               GoldenModel("qwen2-tiny").config("fp32").config,
                               GoldenModel("llama-tiny").config("fp32").config,
                               GoldenModel("qwen3-moe-tiny").config("fp32").config,
                               GoldenModel("gpt-oss-tiny").config("fp32").config,
                               GoldenModel("deepseek-v2-lite-tiny").config("fp32").config}) {
    INFO(config.model.model_type);
    std::map<std::string, Shape> declared;
    const RunPlan plan = make_run_plan(config, 1, 0);
    for (const UnitDecl& unit : plan.blueprint.units()) {
      for (const ParamDecl& param : unit.params) {
        declared.emplace(param.name, param.shape);
      }
    }
    std::map<std::string, Shape> listed;
    for (const ModelTensor& tensor : model_tensors(config.model)) {
      listed.emplace(tensor.name, tensor.shape);
    }
    CHECK(listed == declared);
  }
}

/// A tensor's name without what numbers its block and its expert.
std::string kind_of(const std::string& name) {
  static const std::regex kNumber(R"(\.[0-9]+\b)");
  return std::regex_replace(name, kNumber, "");
}

/// transformers' _init_weights of these families: all that is no norm and no bias is drawn with
/// initializer_range, and so is the bias of gpt-oss's routers; other biases are 0, norms 1.
TEST_CASE("experts, routers, sinks and latents start as in transformers' classes", "[parity]") {
  const auto* const model = GENERATE("mixtral-tiny", "qwen3-moe-tiny", "olmoe-tiny", "gpt-oss-tiny",
                                     "deepseek-v2-tiny", "deepseek-v2-lite-tiny");
  Config config = GoldenModel(model).config("fp32").config;
  config.model.initializer_range = 0.07F;
  const RunPlan plan = make_run_plan(config, 1, 0);
  std::map<std::string, std::vector<double>> drawn;
  for (const UnitDecl& unit : plan.blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      INFO(model << ": " << param.name);
      std::vector<float> values(static_cast<std::size_t>(param.shape.numel()));
      initial_values(param, 1234, 0, values, 1);
      if (param.name.ends_with("norm.weight")) {
        CHECK(values == std::vector<float>(values.size(), 1.0F));
      } else if (param.name.ends_with(".bias") && !param.name.ends_with("router.bias")) {
        CHECK(values == std::vector<float>(values.size(), 0.0F));
      } else {
        std::vector<double>& all = drawn[kind_of(param.name)];
        all.insert(all.end(), values.begin(), values.end());
      }
    }
  }
  for (const auto& [kind, values] : drawn) {
    INFO(model << ": " << kind << ", " << values.size() << " numbers");
    // Of a sum of n squares of standard normal numbers the deviation is √(2n).
    const auto n = static_cast<double>(values.size());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0) / 0.07;
    const double squares =
        std::inner_product(values.begin(), values.end(), values.begin(), 0.0) / (0.07 * 0.07);
    CHECK(std::abs(sum) < 5.0 * std::sqrt(n));
    CHECK(std::abs(squares - n) < 5.0 * std::sqrt(2.0 * n));
    CHECK(std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end());
  }
}

/// A folder with the weights of a model of two blocks, which config_of's token files fit.
fs::path trained_weights(const RunFolder& folder) {
  const LoadedConfig config = config_of(folder, "teacher", 4, 1);
  run(config, 1);
  const fs::path exported = folder.path() / "exported";
  const auto summary = convert_checkpoint({.from = folder.path() / "teacher", .to = exported}, {});
  REQUIRE(summary);
  CHECK(summary->step == 4);
  CHECK(summary->optimizer_left_out);
  return exported;
}

TEST_CASE("a run continues from its own checkpoint, not from the weights it began with",
          "[parity][resume]") {
  const RunFolder folder;
  const fs::path weights = trained_weights(folder);
  const json from_weights = {{"model", weights.string()}};
  run(config_of(folder, "whole", 8, 2, from_weights), 2);

  run(config_of(folder, "halves", 4, 2, from_weights), 2);
  // The run's output describes the model; the weights themselves may be gone.
  const fs::path resolved = folder.path() / "halves" / "config.resolved.json";
  LoadedConfig again = load_config(resolved.string(), {.overrides = {"training.steps=8"}});
  CHECK(again.config.initial_weights == weights.string());
  fs::remove_all(weights);
  resolve_config(again, 2);
  run(again, 2);
  CHECK(metrics_of(folder, "halves") == metrics_of(folder, "whole"));
  CHECK(state_of(folder, "halves", again) == state_of(folder, "whole", again));
}

TEST_CASE("a run's first loss is that of the weights it starts from", "[parity][resume]") {
  const RunFolder folder;
  const fs::path weights = trained_weights(folder);
  const double validation = metrics_of(folder, "teacher").back()["validation_loss"];
  // A learning rate of almost nothing: the first validation sees the weights as they came.
  const json still = {{"optimizer", {{"params", {{"lr", 1e-30}, {"weight_decay", 0.0}}}}},
                      {"scheduler", nullptr},
                      {"training", {{"eval_interval", 1}}}};
  const auto first_validation = [&](const std::string& name, json changes) {
    changes.merge_patch(still);
    run(config_of(folder, name, 1, 2, changes), 2);
    return metrics_of(folder, name).front()["validation_loss"].get<double>();
  };
  CHECK(first_validation("huggingface", {{"model", weights.string()}}) ==
        Approx(validation).epsilon(1e-6));
  const fs::path checkpoint = folder.path() / "teacher" / "checkpoints" / "step-00000004";
  CHECK(first_validation("checkpoint", {{"model", checkpoint.string()}}) ==
        Approx(validation).epsilon(1e-6));
  // Parameters alone, as a checkpoint: to start from, and to resume.
  const fs::path converted = folder.path() / "converted";
  REQUIRE(convert_checkpoint({.from = weights, .to = converted, .ranks = 3}, {}));
  CHECK(first_validation("converted", {{"model", converted.string()}}) ==
        Approx(validation).epsilon(1e-6));
  CHECK(first_validation("resumed", {{"checkpoint", {{"resume", converted.string()}}}}) ==
        Approx(validation).epsilon(1e-6));
  CHECK(first_validation("scratch", json::object()) > 1.01 * validation);
}

TEST_CASE("optimizer and progress survive a change of the number of files", "[parity][resume]") {
  const RunFolder folder;
  run(config_of(folder, "whole", 8, 2), 2);
  run(config_of(folder, "halves", 4, 2), 2);
  const fs::path halves = folder.path() / "halves" / "checkpoints" / "step-00000004";
  const fs::path recut = folder.path() / "recut";
  REQUIRE(convert_checkpoint(
      {.from = halves, .to = recut, .format = TargetFormat::kDstrain, .ranks = 5}, {}));
  const LoadedConfig resumed =
      config_of(folder, "resumed", 8, 2, {{"checkpoint", {{"resume", recut.string()}}}});
  run(resumed, 2);
  CHECK(state_of(folder, "resumed", resumed) == state_of(folder, "whole", resumed));
}

}  // namespace
}  // namespace dstrain::test
