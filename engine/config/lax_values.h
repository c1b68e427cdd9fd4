// Finds what a value means that is written in a JSON type other than its key's: "5e8" and "true" in
// quotes, 0 and 1 as a switch, Infinity as a count. DeepSpeed's users write them, and DeepSpeed's
// Python reads them so.
#pragma once

#include <optional>

#include "engine/config/config_keys.h"

namespace dstrain {

/// The value as the key's type has it, where there is no doubt; otherwise as it is written.
/// "auto" becomes the key's auto_value.
JsonNode value_meant(const Key& key, const JsonNode& written);

/// true, false, 0, 1, and the strings "true", "yes", "on", "1" and their opposites.
std::optional<bool> truth_meant(const JsonNode& node);

/// A number, or a string that is one.
std::optional<double> number_meant(const JsonNode& node);

}  // namespace dstrain
