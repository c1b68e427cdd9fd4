// Parity with PyTorch and Hugging Face's own model classes (tests/golden): not with ourselves.
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/golden_model.h"
#include "tests/harness/local_rendezvous.h"

namespace dstrain::test {
namespace {

struct GoldenRun {
  std::vector<double> losses;
  std::vector<double> grad_norms;
};

/// Ten steps and the loss after them; looks at the gradients of step 0.
template <typename SeeGradient>
GoldenRun run_golden(const GoldenModel& golden,
                     const std::string& precision,
                     SeeGradient&& see_gradient,
                     const nlohmann::json& changes = nlohmann::json::object()) {
  const LoadedConfig loaded = golden.config(precision, 1, changes);
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(loaded.config, 1, 0), *world[0], make_cpu_backend(1), 1);
  const Blueprint& blueprint = engine.plan().blueprint;
  const auto for_each_param = [&](auto&& see) {
    for (int unit = 0; unit < static_cast<int>(blueprint.units().size()); ++unit) {
      const auto& params = blueprint.units()[static_cast<std::size_t>(unit)].params;
      for (int index = 0; index < static_cast<int>(params.size()); ++index) {
        see(ParamRef{unit, index}, params[static_cast<std::size_t>(index)]);
      }
    }
  };
  golden.load_into(engine);

  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    const std::vector<std::int32_t> x = golden.inputs(first_sample / golden.batch());
    const std::vector<std::int32_t> y = golden.targets(first_sample / golden.batch());
    std::copy(x.begin(), x.end(), inputs.begin());
    std::copy(y.begin(), y.end(), targets.begin());
  };
  const auto tokens = static_cast<double>(engine.plan().batch.global_tokens());
  GoldenRun run;
  for (std::int64_t step = 0; step < 10; ++step) {
    const EngineStep result =
        engine.train_step(load, step * golden.batch(),
                          {.learning_rate = 1e-3, .update = step + 1, .gradient_clipping = 1.0});
    run.losses.push_back(result.local_loss_sum / tokens);
    run.grad_norms.push_back(result.stats.grad_norm);
    if (step == 0) {
      for_each_param([&](ParamRef ref, const ParamDecl& param) {
        see_gradient(
            param, param_view(blueprint, engine.arena().unit(RegionKind::kGradients, ref.unit), ref)
                       .as<float>());
      });
    }
  }
  run.losses.push_back(engine.evaluate(load, 10 * golden.batch()).local_loss_sum / tokens);
  return run;
}

/// |got - expected| / |expected|, as Frobenius norms.
double relative_distance(std::span<const float> got, const std::vector<float>& expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

const std::vector<std::string> kModels{
    "gpt2-tiny",        "llama-tiny",    "qwen2-tiny",       "llama3-rope-tiny",
    "qwen3-tiny",       "olmo2-tiny",    "mistral-tiny",     "olmo3-tiny",
    "smollm3-tiny",     "phi3-tiny",     "starcoder2-tiny",  "gemma2-tiny",
    "gemma3-tiny",      "gpt-neox-tiny", "opt-tiny",         "bloom-tiny",
    "baichuan2-tiny",   "longrope-tiny", "mixtral-tiny",     "qwen3-moe-tiny",
    "olmoe-tiny",       "gpt-oss-tiny",  "deepseek-v2-tiny", "deepseek-v2-lite-tiny",
    "deepseek-v3-tiny", "capacity-tiny"};

/// What a run does beyond what its model says.
nlohmann::json changes_of(const std::string& name) {
  if (name != "capacity-tiny") return nlohmann::json::object();
  return {{"training", {{"expert_capacity_factor", 0.75}}}};
}

TEST_CASE("losses of ten AdamW steps and every gradient equal PyTorch's in f32",
          "[parity][golden]") {
  const std::string name = GENERATE(from_range(kModels));
  INFO(name);
  const GoldenModel golden(name);
  const bool unrotated = name == "gpt2-tiny" || name == "opt-tiny" || name == "bloom-tiny";
  double worst_gradient = 0.0;
  const GoldenRun run = run_golden(
      golden, "fp32",
      [&](const ParamDecl& param, std::span<const float> gradient) {
        // A key's bias moves all scores of a query alike, so its gradient is rounding noise.
        if (param.name.ends_with("attention.key.bias") && unrotated) {
          return;
        }
        INFO(param.name);
        const double distance = relative_distance(gradient, golden.gradient(param));
        CHECK(distance < 1e-4);
        worst_gradient = std::max(worst_gradient, distance);
      },
      changes_of(name));
  const std::vector<double> losses = golden.losses();
  const std::vector<double> norms = golden.grad_norms();
  double worst_loss = 0.0;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    CHECK(run.losses.at(step) == Approx(losses[step]).epsilon(1e-5).margin(0));
    worst_loss = std::max(worst_loss, std::abs(run.losses[step] / losses[step] - 1));
  }
  for (std::size_t step = 0; step < norms.size(); ++step) {
    CHECK(run.grad_norms.at(step) == Approx(norms[step]).epsilon(1e-5).margin(0));
  }
  CHECK(losses.size() == 11);
  WARN(name << ": worst relative difference of a loss " << worst_loss << ", of a gradient tensor "
            << worst_gradient);
}

TEST_CASE("in bf16 the losses follow PyTorch's f32 within bf16's precision", "[parity][golden]") {
  const std::string name = GENERATE(from_range(kModels));
  INFO(name);
  const GoldenModel golden(name);
  const GoldenRun run = run_golden(
      golden, "bf16", [](const ParamDecl&, std::span<const float>) {}, changes_of(name));
  const std::vector<double> losses = golden.losses();
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    // bf16 keeps 8 bits; averaged over the batch the loss is far closer than one product.
    CHECK(run.losses.at(step) == Approx(losses[step]).epsilon(5e-3).margin(0));
  }
}

TEST_CASE("in 8 bits losses and gradients are PyTorch's in 8 bits", "[parity][golden][fp8]") {
  const GoldenModel golden("fp8-tiny");
  double worst_gradient = 0.0;
  // Beside fp32, so that both convert the same numbers: what bf16 rounds otherwise is now and then
  // across the border between two numbers of 8 bits, and hides what is compared.
  const auto see = [&](const ParamDecl& param, std::span<const float> gradient) {
    INFO(param.name);
    const std::vector<float> theirs = golden.fp8_gradient(param);
    const double distance = relative_distance(gradient, theirs);
    CHECK(distance < 1e-3);
    CHECK(relative_distance(golden.gradient(param), theirs) > 0.05);  // what 8 bits change
    worst_gradient = std::max(worst_gradient, distance);
  };
  const GoldenRun run = run_golden(golden, "fp32", see, {{"fp8", {{"enabled", true}}}});
  const std::vector<double> losses = golden.fp8_losses();
  CHECK(run.losses.front() == Approx(losses.front()).epsilon(1e-5).margin(0));
  double worst_loss = 0.0;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    // From the second step on, weights differ in their last bits, and some of them in 8 bits.
    CHECK(run.losses.at(step) == Approx(losses[step]).epsilon(3e-3).margin(0));
    worst_loss = std::max(worst_loss, std::abs(run.losses[step] / losses[step] - 1));
  }
  WARN("worst relative difference of a loss " << worst_loss << ", of a gradient tensor "
                                              << worst_gradient);
}

}  // namespace
}  // namespace dstrain::test
