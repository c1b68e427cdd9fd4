// What a wrong value was probably meant to be: the same in another type, the nearest choice or
// bound, or, of a feature that is refused, its being off.
#pragma once

#include <vector>

#include "engine/config/config_keys.h"

namespace dstrain {

/// Candidates, the likeliest first. None of them is checked; the list may be empty.
std::vector<JsonNode> nearby_values(const Key& key, const JsonNode& wrong);

}  // namespace dstrain
