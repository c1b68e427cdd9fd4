// Guesses what a wrong value was meant to be: the same in another type, the nearest choice or
// bound, or, for a feature that is refused, the value that turns it off.
#pragma once

#include <vector>

#include "engine/config/config_keys.h"

namespace dstrain {

/// Candidates, the likeliest first. None of them is checked; the list may be empty.
std::vector<JsonNode> nearby_values(const Key& key, const JsonNode& wrong);

}  // namespace dstrain
