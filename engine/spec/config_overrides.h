// --set path=value: puts values from the command line into the tree before it is checked.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/json_text.h"

namespace dstrain {

/// The value is JSON, or else a bare string. Missing blocks are made; a number in the path is an
/// index of a list. Paths that mean nothing are left to the check for unknown keys.
void apply_overrides(JsonNode& root, const std::vector<std::string>& overrides);

/// "model": "folder" becomes the contents of folder/config.json.
void expand_model_folder(JsonNode& root);

}  // namespace dstrain
