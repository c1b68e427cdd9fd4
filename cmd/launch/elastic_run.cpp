#include "cmd/launch/elastic_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

bool resolves(const RunFlags& run, int world_size) {
  try {
    static_cast<void>(load_and_resolve(run, world_size));
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

std::optional<RunFlags> fit_to_ranks(const RunFlags& run,
                                     const LoadedConfig& whole,
                                     int whole_size,
                                     int world_size) {
  if (world_size == whole_size) return run;
  if (whole.config.elasticity.enabled) {  // which says itself what these ranks do
    return resolves(run, world_size) ? std::optional(run) : std::nullopt;
  }
  const BatchConfig& batch = whole.config.batch;
  const std::int64_t model_ranks = whole.config.tensor_parallel.size * whole.config.pipeline.stages;
  const std::int64_t data_parallel = world_size / model_ranks;
  if (world_size % model_ranks != 0 || *batch.train_batch_size % data_parallel != 0) {
    return std::nullopt;
  }
  const std::int64_t share = *batch.train_batch_size / data_parallel;
  for (std::int64_t micro = std::min(*batch.micro_batch_size, share); micro > 0; --micro) {
    if (share % micro != 0) continue;
    RunFlags changed = run;
    changed.overrides.push_back(fmt::format("train_batch_size={}", *batch.train_batch_size));
    changed.overrides.push_back(fmt::format("train_micro_batch_size_per_gpu={}", micro));
    changed.overrides.push_back(fmt::format("gradient_accumulation_steps={}", share / micro));
    if (resolves(changed, world_size)) return changed;
  }
  return std::nullopt;
}

}  // namespace dstrain
