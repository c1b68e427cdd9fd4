// "model": "folder": what a folder says about a model. It holds a Hugging Face config.json, with or
// without weights, or is one of our checkpoints, whose manifest knows the config of its run. Only
// that description is read here; a run starts from the weights, if there are any.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/json_text.h"

namespace dstrain {

/// Whether the weights in a model's folder are used. An estimate ignores them, as memory does not
/// depend on them.
enum class Weights : std::uint8_t { kStartFrom, kIgnored };

/// Replaces "model": "folder" by the keys of the model, and "initial_weights" if it holds weights.
void expand_model_folder(JsonNode& root, Weights weights);

/// The keys of the model in the folder that `path` names, a text. Errors name `key`, whose value it
/// is. Throws ConfigError.
JsonNode read_model_folder(const JsonNode& path, const std::string& key);

}  // namespace dstrain
