// A ModelSpec by itself, without a run around it: read from a Hugging Face folder or from the
// config that a checkpoint carries, and written as the keys of a config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/config/adapter_config.h"
#include "engine/config/json_text.h"
#include "engine/config/model_spec.h"

namespace dstrain {

/// `path`: a Hugging Face model's folder or its config.json. Throws ConfigError.
ModelSpec load_model_spec(const std::string& path);

/// The model in the folder that `path` names, a text: Hugging Face's or one of our checkpoints.
/// Errors name `key`, whose value it is. Throws ConfigError.
ModelSpec model_spec_in(const JsonNode& path, const std::string& key);

/// The "model" of a run's config. Errors name `where`. Throws ConfigError.
ModelSpec parse_model_spec(std::string_view run_config, const std::string& where);

/// The adapters that a run's resolved config asks for; without "peft" there are none.
AdapterConfig parse_adapters(std::string_view run_config, const std::string& where);

/// Where the weights lie that a run started from, by its resolved config; "" where it began with
/// random ones.
std::string parse_initial_weights(std::string_view run_config, const std::string& where);

/// A JSON object: the keys that the model's family has, with their values.
std::string model_json(const ModelSpec& model);

}  // namespace dstrain
