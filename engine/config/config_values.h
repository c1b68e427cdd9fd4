// The config as a list of (path, value, origin), in the order of the key table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/config/loaded_config.h"

namespace dstrain {

/// Every key that applies and has a value. `origins` knows those that are not defaults.
std::vector<ConfigValue> list_values(const Config& config,
                                     const std::map<std::string, std::string>& origins);

}  // namespace dstrain
