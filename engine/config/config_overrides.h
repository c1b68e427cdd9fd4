// --set path=value: puts values from the command line into the tree before it is checked.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config_problems.h"
#include "engine/config/json_text.h"
#include "engine/config/model_folder.h"

namespace dstrain {

/// The value is JSON, or else a bare string; null removes what the file says, unless null is a
/// value of the key. Missing blocks are made; a number in the path is an index of a list. Paths
/// that mean nothing are left to the check for unknown keys.
void apply_overrides(JsonNode& root,
                     const std::vector<std::string>& overrides,
                     Weights weights,
                     ConfigProblems& problems);

/// The same for one argument, as a change of the text. Throws ConfigError.
ConfigEdit edit_of_override(const std::string& text);

/// Puts `value` at a dotted path. Missing blocks are made, at value.where.
void put_value(JsonNode& root, const std::string& path, const JsonNode& value);

}  // namespace dstrain
