// Finds the keys of a config that are in no table, and says what was probably meant.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/json_text.h"

namespace dstrain {

/// Throws for the first unknown key, or for a block that is not an object. With `allow`, unknown
/// keys become lines of `notices` instead.
void check_known_keys(const JsonNode& root, bool allow, std::vector<std::string>& notices);

/// "did you mean …?" for an unknown key of `block` ("" is the top level); empty if nothing is near.
std::string suggest_key(const std::string& block, const std::string& name);

}  // namespace dstrain
