#include "engine/train/run_training.h"

#include <algorithm>

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

Backend make_backend(DeviceChoice device, int threads) {
  if (device == DeviceChoice::kCuda) {
    throw ConfigError(
        "training.device is \"cuda\", but this dstrain is built without CUDA: use \"cpu\" or "
        "\"auto\"");
  }
  return make_cpu_backend(threads);
}

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

TrainResult run_training(const LoadedConfig& config,
                         Rendezvous& rendezvous,
                         const TrainOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  Engine engine(config.config, rendezvous, make_backend(config.config.training.device, threads),
                threads, options.activity);
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
                  total_bytes(cpu_library_overhead(config.config, engine.plan(), threads)));
  return trainer.run();
}

}  // namespace dstrain
