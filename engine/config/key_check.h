// Checks one written value against its line of the key table: type, range, choices, status.
#pragma once

#include "engine/config/config_keys.h"

namespace dstrain {

/// Whether the value says nothing: null or "auto" where they mean the default.
bool is_as_if_absent(const Key& key, const JsonNode& node);

/// Whether the value is one that is fine whatever the key's status (the feature is off).
bool is_accepted_value(const Key& key, const JsonNode& node);

/// Throws ConfigError with the value's position and what was expected.
void check_value(const Key& key, const JsonNode& node);

}  // namespace dstrain
