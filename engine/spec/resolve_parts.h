// The parts of resolve_config, by block. Each fills what is open in its block, notes where that
// came from, and throws ConfigError where values contradict each other.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/spec/config_json.h"

namespace dstrain {

/// path → where its value comes from; written ones have their position.
using Origins = std::map<std::string, std::string>;

/// Data-parallel ranks, of `world_size` in all. Checks what each rank holds of the model.
std::int64_t divide_ranks(const LoadedConfig& loaded, int world_size, Origins& origins);
/// What tensor and pipeline parallelism ask of the batch and of the other blocks.
void resolve_parallel(LoadedConfig& loaded, Origins& origins);
void resolve_precision(LoadedConfig& loaded, Origins& origins);
void resolve_optimizer(LoadedConfig& loaded, Origins& origins);
void resolve_scheduler(LoadedConfig& loaded, Origins& origins);

}  // namespace dstrain
