// --set path=value: puts values from the command line into the tree before it is checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/json_text.h"

namespace dstrain {

/// Weights in a model's folder. Only starting from them is not in this version yet: what a model
/// takes does not depend on them.
enum class Weights : std::uint8_t { kRefused, kIgnored };

/// The value is JSON, or else a bare string. Missing blocks are made; a number in the path is an
/// index of a list. Paths that mean nothing are left to the check for unknown keys.
void apply_overrides(JsonNode& root, const std::vector<std::string>& overrides, Weights weights);

/// Puts `value` at a dotted path. Missing blocks are made, at value.where.
void put_value(JsonNode& root, const std::string& path, const JsonNode& value);

/// "model": "folder" becomes the contents of folder/config.json.
void expand_model_folder(JsonNode& root, Weights weights);

}  // namespace dstrain
