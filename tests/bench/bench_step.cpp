// bench_step: how fast one rank trains a config's model on random tokens: tokens/s, model FLOP/s,
// the share of what this machine's matrix products reach on the same shapes, peak memory.
// scripts/bench_step runs it beside PyTorch.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "engine/spec/config_json.h"
#include "engine/train/engine.h"
#include "kernels/math/philox.h"
#include "tests/bench/matmul_ceiling.h"

namespace dstrain::bench {
namespace {

struct Arguments {
  std::string config;
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  std::string precision = "bf16";
  int threads = 2;
  double seconds = 20.0;
  bool json = false;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Config config_for(const Arguments& arguments) {
  LoadedConfig loaded =
      load_config(arguments.config,
                  {.overrides = {fmt::format("train_micro_batch_size_per_gpu={}", arguments.batch),
                                 fmt::format("train_batch_size={}", arguments.batch),
                                 "gradient_accumulation_steps=1",
                                 fmt::format("bf16.enabled={}", arguments.precision == "bf16"),
                                 fmt::format("data.sequence_length={}", arguments.sequence)}});
  resolve_config(loaded, 1);
  return loaded.config;
}

/// The linear layers of one step.
std::vector<LinearShape> linear_layers(const ModelSpec& model, std::int64_t tokens) {
  const std::int64_t heads = model.num_heads * model.head_dim;
  const std::int64_t qkv = heads + 2 * model.num_key_value_heads * model.head_dim;
  const std::int64_t up = model.intermediate_size * (model.gated_mlp ? 2 : 1);
  return {{tokens, model.hidden_size, qkv, model.num_layers},
          {tokens, heads, model.hidden_size, model.num_layers},
          {tokens, model.hidden_size, up, model.num_layers},
          {tokens, model.intermediate_size, model.hidden_size, model.num_layers},
          {tokens, model.hidden_size, model.vocab_size, 1}};
}

double ceiling_flops(const ModelSpec& model, const Arguments& arguments) {
  const std::vector<LinearShape> layers =
      linear_layers(model, arguments.batch * arguments.sequence);
  double flops = 0.0;
  for (const LinearShape& layer : layers) {
    flops += 6.0 * static_cast<double>(layer.tokens) * static_cast<double>(layer.inputs) *
             static_cast<double>(layer.outputs) * static_cast<double>(layer.count);
  }
  const DType dtype = arguments.precision == "bf16" ? DType::kBF16 : DType::kF32;
  return flops / matmul_ceiling_seconds(layers, dtype, arguments.threads);
}

int run(const Arguments& arguments) {
  const Config config = config_for(arguments);
  const ModelSpec& model = config.model;
  const auto world = make_local_rendezvous(1);
  Engine engine(config, *world[0], make_cpu_backend(arguments.threads), arguments.threads);
  const LoadBatch load = [&](std::int64_t first, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto words = philox(7, static_cast<std::uint64_t>(first) + i, 0);
      inputs[i] =
          static_cast<std::int32_t>(words[0] % static_cast<std::uint32_t>(model.vocab_size));
      targets[i] =
          static_cast<std::int32_t>(words[1] % static_cast<std::uint32_t>(model.vocab_size));
    }
  };

  std::vector<double> steps;
  StepTimes phases;
  std::int64_t done = 0;
  const auto step = [&] {
    const Clock::time_point start = Clock::now();
    const EngineStep result =
        engine.train_step(load, done * arguments.batch,
                          {.learning_rate = 1e-4, .update = done + 1, .gradient_clipping = 1.0});
    ++done;
    phases.forward += result.times.forward;
    phases.backward += result.times.backward;
    phases.optimizer += result.times.optimizer;
    return seconds_since(start);
  };
  step();  // first touch, primitive creation
  step();
  phases = {};
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < arguments.seconds || steps.size() < 3) {
    steps.push_back(step());
  }

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto tokens = static_cast<double>(arguments.batch * arguments.sequence);
  const double rate = tokens / median(steps);
  const double model_flops = rate * model.flops_per_token(arguments.sequence);
  const double ceiling = ceiling_flops(model, arguments);
  const auto count = static_cast<double>(steps.size());
  const nlohmann::ordered_json result{
      {"program", "dstrain"},
      {"config", arguments.config},
      {"batch", arguments.batch},
      {"sequence", arguments.sequence},
      {"precision", arguments.precision},
      {"threads", arguments.threads},
      {"steps", steps.size()},
      {"tokens_per_second", rate},
      {"tokens_per_second_min", tokens / *std::max_element(steps.begin(), steps.end())},
      {"tokens_per_second_max", tokens / *std::min_element(steps.begin(), steps.end())},
      {"model_flops_per_second", model_flops},
      {"matmul_ceiling_flops_per_second", ceiling},
      {"share_of_ceiling", model_flops / ceiling},
      {"forward_ms", phases.forward / count * 1e3},
      {"backward_ms", phases.backward / count * 1e3},
      {"optimizer_ms", phases.optimizer / count * 1e3},
      {"planned_bytes", engine.plan().memory.bytes()},
      {"peak_memory_bytes", usage.ru_maxrss * 1024}};
  if (arguments.json) {
    fmt::print("{}\n", result.dump());
    return 0;
  }
  fmt::print("{} {} batch {} sequence {} threads {}: {:.0f} tokens/s ({:.0f}-{:.0f}, {} steps)\n",
             arguments.config, arguments.precision, arguments.batch, arguments.sequence,
             arguments.threads, rate, result["tokens_per_second_min"].get<double>(),
             result["tokens_per_second_max"].get<double>(), steps.size());
  fmt::print("  model {:.0f} GFLOP/s, {:.0f} % of the matmul ceiling ({:.0f} GFLOP/s)\n",
             model_flops / 1e9, 100.0 * model_flops / ceiling, ceiling / 1e9);
  fmt::print("  forward {:.1f} ms, backward {:.1f} ms, optimizer {:.1f} ms\n",
             phases.forward / count * 1e3, phases.backward / count * 1e3,
             phases.optimizer / count * 1e3);
  fmt::print("  memory: planned {:.2f} GiB, peak resident {:.2f} GiB\n",
             static_cast<double>(engine.plan().memory.bytes()) / (1 << 30),
             static_cast<double>(usage.ru_maxrss) * 1024 / (1 << 30));
  return 0;
}

}  // namespace
}  // namespace dstrain::bench

int main(int argc, char** argv) {
  dstrain::bench::Arguments arguments;
  CLI::App app("Trains a config's model on random tokens and says how fast that goes.");
  app.add_option("--config", arguments.config, "a dstrain config")->required();
  app.add_option("--batch", arguments.batch, "sequences of a step")->capture_default_str();
  app.add_option("--sequence", arguments.sequence, "tokens of a sequence")->capture_default_str();
  app.add_option("--precision", arguments.precision, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "compute threads")->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "how long to measure")->capture_default_str();
  app.add_flag("--json", arguments.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);
  return dstrain::bench::run(arguments);
}
