// The parts of resolve_config, by block. Each fills what is open in its block, notes where that
// came from, and throws ConfigError where values contradict each other.
#pragma once

#include <map>
#include <string>

#include "engine/spec/config_json.h"

namespace dstrain {

/// path → where its value comes from; written ones have their position.
using Origins = std::map<std::string, std::string>;

void resolve_precision(LoadedConfig& loaded, Origins& origins);
void resolve_optimizer(LoadedConfig& loaded, Origins& origins);
void resolve_scheduler(LoadedConfig& loaded, Origins& origins);

}  // namespace dstrain
