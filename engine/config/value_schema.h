// Describes what one key of the table accepts, as a JSON Schema: the counterpart of key_check.h.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/config/config_keys.h"

namespace dstrain {

/// The values that the key takes, those that say nothing (null, "auto") included.
nlohmann::ordered_json value_schema(const Key& key);

/// A schema that accepts any of them, each listed once; a single one stands for itself.
nlohmann::ordered_json any_of(const std::vector<nlohmann::ordered_json>& schemas);

/// A string in any letter case, with '-' as good as '_'.
nlohmann::ordered_json text_in_any_case(const std::string& text);

/// The ways to write true, or false: those of truth_meant().
nlohmann::ordered_json truth_schema(bool truth);

/// The text that an editor shows beside the key.
std::string description_of(const Key& key);

}  // namespace dstrain
