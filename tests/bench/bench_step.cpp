// bench_step: measures how fast one rank trains a config's model on random tokens: tokens/s, model
// FLOP/s, the share of what this machine's matrix products reach on the same shapes, peak memory.
// scripts/bench_step and scripts/bench_gpu run it beside PyTorch.
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/comm/solo_communicator.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/config/config_json.h"
#include "engine/train/accelerators.h"
#include "engine/train/engine.h"
#include "engine/train/library_overhead.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/rank_device.h"
#include "kernels/math/philox.h"
#include "tests/bench/machine_peak.h"
#include "tests/bench/matmul_ceiling.h"
#include "tests/bench/product_time.h"
#include "tests/bench/step_budget.h"

namespace dstrain::bench {
namespace {

struct Arguments {
  std::string config;
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  std::int64_t accumulation = 1;
  std::string precision = "bf16";
  std::vector<std::string> overrides;
  std::string device = "cpu";
  int threads = 2;
  double seconds = 20.0;
  int warm_up = 2;
  int fewest_steps = 3;
  bool json = false;
  bool budget = false;

  [[nodiscard]] std::int64_t samples() const { return batch * accumulation; }
  [[nodiscard]] double tokens() const { return static_cast<double>(samples() * sequence); }
  [[nodiscard]] bool on_gpu() const { return device == "cuda"; }
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
  std::vector<std::string> overrides{
      fmt::format("train_micro_batch_size_per_gpu={}", arguments.batch),
      fmt::format("train_batch_size={}", arguments.samples()),
      fmt::format("gradient_accumulation_steps={}", arguments.accumulation),
      fmt::format("bf16.enabled={}", arguments.precision == "bf16"),
      fmt::format("data.sequence_length={}", arguments.sequence)};
  overrides.insert(overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
  LoadedConfig loaded = load_config(arguments.config, {.overrides = overrides});
  resolve_config(loaded, 1);
  return loaded.config;
}

/// How a run of the config computes on a GPU. Where it would keep algorithms of products in its
/// output folder, they are timed for this benchmark alone.
class GpuOptions {
 public:
  explicit GpuOptions(const Config& config) : options_(cuda_options(config)) {
    if (config.training.matmul_algorithms == "auto") {
      file_ = std::filesystem::temp_directory_path() /
              fmt::format("bench_step-{}-algorithms.jsonl", getpid());
      options_.matmul_algorithms_file = file_.string();
    }
    options_.tell = [](const std::string& choice) { fmt::print(stderr, "{}\n", choice); };
  }
  GpuOptions(const GpuOptions&) = delete;
  GpuOptions& operator=(const GpuOptions&) = delete;
  ~GpuOptions() {
    std::error_code ignored;  // it may never have been made
    std::filesystem::remove(file_, ignored);
  }
  [[nodiscard]] const CudaOptions& get() const { return options_; }

 private:
  CudaOptions options_;
  std::filesystem::path file_;
};

/// The linear layers of one step.
std::vector<LinearShape> linear_layers(const ModelSpec& model, std::int64_t tokens) {
  const std::int64_t heads = model.num_heads * model.head_dim;
  const std::int64_t qkv = heads + 2 * model.num_key_value_heads * model.head_dim;
  const std::int64_t up = model.intermediate_size * (model.gated_mlp ? 2 : 1);
  return {{tokens, model.hidden_size, qkv, model.num_layers},
          {tokens, heads, model.hidden_size, model.num_layers},
          {tokens, model.hidden_size, up, model.num_layers},
          {tokens, model.intermediate_size, model.hidden_size, model.num_layers},
          {tokens, model.hidden_size, vocabulary_rows(model.vocab_size, 1), 1}};
}

/// The speed that the linear layers of a micro-batch reach by themselves: on a CPU with the fastest
/// of several ways, on a GPU with this program's own, with nothing else in between.
double ceiling_flops(const ModelSpec& model, const Arguments& arguments, const CudaOptions& cuda) {
  const std::vector<LinearShape> layers =
      linear_layers(model, arguments.batch * arguments.sequence);
  double flops = 0.0;
  for (const LinearShape& layer : layers) {
    flops += 6.0 * static_cast<double>(layer.tokens) * static_cast<double>(layer.inputs) *
             static_cast<double>(layer.outputs) * static_cast<double>(layer.count);
  }
  const DType dtype = arguments.precision == "bf16" ? DType::kBF16 : DType::kF32;
  if (!arguments.on_gpu()) {
    return flops / matmul_ceiling_seconds(layers, dtype, arguments.threads);
  }
  Backend backend = make_cuda_backend(0, cuda);
  return flops / product_seconds(backend, layers, dtype);
}

/// Peaks, in bytes.
struct Memory {
  std::int64_t planned = 0;
  std::int64_t expected = 0;  ///< with what is beside the plan (library_overhead.h)
  std::int64_t peak = 0;
};

Memory memory_of(Engine& engine, int threads) {
  const std::int64_t planned = engine.plan().memory.bytes();
  const auto readings = engine.device().readings();
  if (readings) {
    const MemoryInfo info = engine.device().memory_info();
    // Nothing else runs on the GPU, so all memory that is not free is this process's, its context
    // included.
    return {.planned = planned,
            .expected = planned + total_bytes(cuda_library_overhead(engine.plan())),
            .peak = std::max(readings->peak_bytes, info.total_bytes - info.available_bytes)};
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {.planned = planned,
          .expected = planned + total_bytes(cpu_library_overhead(engine.plan(), threads)),
          .peak = usage.ru_maxrss * 1024};
}

LoadBatch random_tokens(const ModelSpec& model) {
  const auto size = static_cast<std::uint32_t>(model.vocab_size);
  return
      [size](std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const auto words = philox(7, static_cast<std::uint64_t>(first) + i, 0);
          inputs[i] = static_cast<std::int32_t>(words[0] % size);
          targets[i] = static_cast<std::int32_t>(words[1] % size);
        }
      };
}

struct Measured {
  std::vector<double> steps;       ///< seconds
  StepTimes phases;                ///< of all of them, on the host's clock
  double last_loss = 0.0;          ///< mean over a step's tokens
  std::vector<TraceTrack> tracks;  ///< of kTracedSteps steps behind those, if asked for
  double traced_seconds = 0.0;     ///< of one of them
};
constexpr int kTracedSteps = 5;

Measured measure(const Arguments& arguments, Engine& engine, const LoadBatch& load, TraceLog& log) {
  Measured measured;
  std::int64_t done = 0;
  const auto step = [&] {
    const Clock::time_point start = Clock::now();
    const EngineStep result =
        engine.train_step(load, done * arguments.samples(),
                          {.learning_rate = 1e-4, .update = done + 1, .gradient_clipping = 1.0});
    ++done;
    measured.phases.forward += result.times.forward;
    measured.phases.backward += result.times.backward;
    measured.phases.optimizer += result.times.optimizer;
    measured.last_loss = result.local_loss_sum / arguments.tokens();
    return seconds_since(start);
  };
  for (int i = 0; i < arguments.warm_up; ++i) {
    step();  // first touch, primitive creation
  }
  measured.phases = {};
  const Clock::time_point start = Clock::now();
  const auto fewest = static_cast<std::size_t>(arguments.fewest_steps);
  while (seconds_since(start) < arguments.seconds || measured.steps.size() < fewest) {
    measured.steps.push_back(step());
  }
  if (arguments.budget) {
    log.start();
    for (int i = 0; i < kTracedSteps; ++i) {
      measured.traced_seconds += step() / kTracedSteps;
    }
    measured.tracks = log.stop();
  }
  return measured;
}

nlohmann::ordered_json result_of(const Arguments& arguments) {
  const Config config = config_for(arguments);
  const ModelSpec& model = config.model;
  const GpuOptions on_gpu(config);
  const CudaOptions& cuda = on_gpu.get();
  const auto world = make_solo_rendezvous();
  TraceLog log;
  const TraceLog::Thread traced(&log, "compute");
  Measured measured;
  Memory memory;
  std::string device;
  std::optional<DeviceReadings> readings;
  std::optional<Accelerator> sheet;
  {
    Engine engine(
        make_run_plan(config, 1, 0), *world,
        arguments.on_gpu() ? make_cuda_backend(0, cuda) : make_cpu_backend(arguments.threads),
        arguments.threads);
    measured = measure(arguments, engine, random_tokens(model), log);
    memory = memory_of(engine, arguments.threads);
    device = engine.device().description();
    readings = engine.device().readings();
    sheet = accelerator_of_model(engine.device().model());
  }  // the ceiling is measured with the memory free again
  std::vector<double>& steps = measured.steps;
  const double rate = arguments.tokens() / median(steps);
  const double model_flops = rate * flops_per_token(model, arguments.sequence);
  const double ceiling = ceiling_flops(model, arguments, cuda);
  const auto count = static_cast<double>(steps.size());
  nlohmann::ordered_json result{
      {"program", "dstrain"},
      {"config", arguments.config},
      {"device", device},
      {"batch", arguments.batch},
      {"accumulation", arguments.accumulation},
      {"sequence", arguments.sequence},
      {"precision", arguments.precision},
      {"threads", arguments.threads},
      {"steps", steps.size()},
      {"loss", measured.last_loss},
      {"tokens_per_second", rate},
      {"tokens_per_second_min", arguments.tokens() / *std::max_element(steps.begin(), steps.end())},
      {"tokens_per_second_max", arguments.tokens() / *std::min_element(steps.begin(), steps.end())},
      {"model_flops_per_second", model_flops},
      {"matmul_ceiling_flops_per_second", ceiling},
      {"share_of_ceiling", model_flops / ceiling},
      {"model_flops_utilization", nullptr},
      {"forward_ms", measured.phases.forward / count * 1e3},
      {"backward_ms", measured.phases.backward / count * 1e3},
      {"optimizer_ms", measured.phases.optimizer / count * 1e3},
      {"planned_bytes", memory.planned},
      {"expected_bytes", memory.expected},
      {"peak_memory_bytes", memory.peak}};
  if (!arguments.on_gpu()) {
    const DType dtype = arguments.precision == "bf16" ? DType::kBF16 : DType::kF32;
    const InstructionPeak peak = instruction_peak(dtype, arguments.threads);
    result["instruction"] = peak.instruction;
    result["instruction_flops_per_second"] = peak.flops;
    const double bytes = memory_rate(arguments.threads);
    result["memory_bytes_per_second"] = bytes;
    if (arguments.budget) {
      // Beside the JSON object, if that is asked for.
      fmt::print(arguments.json ? stderr : stdout, "{}",
                 budget_text(step_budget(measured.tracks, kTracedSteps,
                                         {.flops = peak.flops, .bytes = bytes}),
                             measured.traced_seconds));
    }
  }
  if (sheet && arguments.precision == "bf16") {
    result["model_flops_utilization"] = model_flops / sheet->flops;
  }
  if (readings && readings->compute_mhz) result["compute_mhz"] = *readings->compute_mhz;
  if (readings && readings->watts) result["watts"] = *readings->watts;
  return result;
}

void print(const Arguments& arguments, const nlohmann::ordered_json& result) {
  const auto number = [&](const char* key) { return result[key].get<double>(); };
  fmt::print("{} {} batch {} × {} sequence {} on {}: {:.0f} tokens/s ({:.0f}-{:.0f}, {} steps)\n",
             arguments.config, arguments.precision, arguments.batch, arguments.accumulation,
             arguments.sequence, result["device"].get<std::string>(), number("tokens_per_second"),
             number("tokens_per_second_min"), number("tokens_per_second_max"),
             result["steps"].get<int>());
  fmt::print("  model {:.0f} GFLOP/s, {:.0f} % of the matmul ceiling ({:.0f} GFLOP/s)",
             number("model_flops_per_second") / 1e9, 100.0 * number("share_of_ceiling"),
             number("matmul_ceiling_flops_per_second") / 1e9);
  if (!result["model_flops_utilization"].is_null()) {
    fmt::print(", MFU {:.1f} %", 100.0 * number("model_flops_utilization"));
  }
  if (result.contains("instruction")) {
    fmt::print("\n  this processor: {:.0f} GFLOP/s by {}, {:.1f} GB/s",
               number("instruction_flops_per_second") / 1e9,
               result["instruction"].get<std::string>(), number("memory_bytes_per_second") / 1e9);
  }
  fmt::print("\n  forward {:.1f} ms, backward {:.1f} ms, optimizer {:.1f} ms\n",
             number("forward_ms"), number("backward_ms"), number("optimizer_ms"));
  constexpr double kGiB = 0x1p30;
  fmt::print("  memory: planned {:.2f} GiB, with libraries {:.2f} GiB, peak {:.2f} GiB\n",
             number("planned_bytes") / kGiB, number("expected_bytes") / kGiB,
             number("peak_memory_bytes") / kGiB);
}

int run(const Arguments& arguments) {
  const nlohmann::ordered_json result = result_of(arguments);
  if (arguments.json) {
    fmt::print("{}\n", result.dump());
  } else {
    print(arguments, result);
  }
  return 0;
}

}  // namespace
}  // namespace dstrain::bench

int main(int argc, char** argv) {
  dstrain::bench::Arguments arguments;
  CLI::App app("Trains a config's model on random tokens and says how fast that goes.");
  app.add_option("--config", arguments.config, "a dstrain config")->required();
  app.add_option("--batch", arguments.batch, "sequences of a micro-batch")->capture_default_str();
  app.add_option("--accumulation", arguments.accumulation, "micro-batches of a step")
      ->capture_default_str();
  app.add_option("--sequence", arguments.sequence, "tokens of a sequence")->capture_default_str();
  app.add_option("--precision", arguments.precision, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--set", arguments.overrides, "KEY=VALUE over the config's, as dstrain takes it");
  app.add_option("--device", arguments.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "compute threads")->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "how long to measure")->capture_default_str();
  app.add_option("--warm-up", arguments.warm_up, "steps before")->capture_default_str();
  app.add_option("--fewest-steps", arguments.fewest_steps, "to measure")->capture_default_str();
  app.add_flag("--budget", arguments.budget,
               "print where the time of a step goes, and what each operation would take at the "
               "processor's limit (on a CPU)");
  app.add_flag("--json", arguments.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);
  if (arguments.budget && arguments.on_gpu()) {
    fmt::print(stderr, "bench_step: --budget is for --device cpu\n");
    return 2;
  }
  try {
    return dstrain::bench::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_step: {}\n", error.what());
    return 1;
  }
}
