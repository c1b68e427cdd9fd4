// A ModelSpec by itself, without a run around it: read from a Hugging Face folder or from the
// config that a checkpoint carries, and written as the keys of a config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/config/model_spec.h"

namespace dstrain {

/// `path`: a Hugging Face model's folder or its config.json. Throws ConfigError.
ModelSpec load_model_spec(const std::string& path);

/// The "model" of a run's config. Errors name `where`. Throws ConfigError.
ModelSpec parse_model_spec(std::string_view run_config, const std::string& where);

/// A JSON object: the keys that the model's family has, with their values.
std::string model_json(const ModelSpec& model);

}  // namespace dstrain
