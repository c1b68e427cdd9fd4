#include "engine/train/run_training.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include "engine/spec/config_error.h"
#include "engine/train/engine.h"
#include "engine/train/library_overhead.h"
#include "engine/train/trainer.h"
#include "kernels/backend.h"

namespace dstrain {
namespace {

/// As many as this process may run on.
int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

CudaOptions cuda_options(const TrainingConfig& training) {
  const std::string& algorithms = training.matmul_algorithms;
  const std::filesystem::path of_the_run =
      std::filesystem::path(training.output_dir) / "matmul_algorithms.jsonl";
  return {.tf32 = training.tf32,
          .matmul_algorithms_file = algorithms == "untimed" ? ""
                                    : algorithms == "auto"  ? of_the_run.string()
                                                            : algorithms,
          .attention = training.attention,
          .tell = [](const std::string& line) { spdlog::info("{}", line); }};
}

/// "auto" is the CPU until training on a GPU has been measured.
Backend make_backend(const TrainingConfig& training, int threads, int world_size) {
  if (training.device == DeviceChoice::kCuda) {
    if (world_size > 1) {
      throw ConfigError(
          fmt::format("training.device is \"cuda\" on {} ranks, but this dstrain's ranks cannot "
                      "talk about what "
                      "is on GPUs yet: use one rank, or \"cpu\"",
                      world_size));
    }
    if (const CudaDevices found = find_cuda_devices(); found.names.empty()) {
      throw ConfigError(fmt::format("training.device is \"cuda\", but {}: use \"cpu\" or \"auto\"",
                                    found.why_none));
    }
    return make_cuda_backend(0, cuda_options(training));
  }
  return make_cpu_backend(threads);
}

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

TrainResult run_training(const LoadedConfig& config,
                         Rendezvous& rendezvous,
                         const TrainOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  Engine engine(config.config, rendezvous,
                make_backend(config.config.training, threads, rendezvous.world_size()), threads,
                options.activity);
  if (options.activity != nullptr) {
    options.activity->set_comparable(engine.plan().here.pipeline);
  }
  if (engine.world().rank() == 0) {
    const RunPlan& plan = engine.plan();
    spdlog::info("{} parameters, {} ranks, {} on each; {} tokens a step; {:.2f} GiB a rank planned",
                 config.config.model.num_parameters(), rendezvous.world_size(),
                 engine.device().description(), plan.batch.global_tokens(),
                 static_cast<double>(plan.memory.bytes()) / kGiB);
    for (const std::string& notice : config.notices) {
      spdlog::info("{}", notice);
    }
  }
  Trainer trainer(config, engine, options,
                  total_bytes(engine.device().kind() == DeviceKind::kCuda
                                  ? cuda_library_overhead(config.config, engine.plan())
                                  : cpu_library_overhead(config.config, engine.plan(), threads)));
  return trainer.run();
}

}  // namespace dstrain
