// LongRoPE (Ding et al. 2024) in a block of rotary keys: Phi-3 and Phi-4 with 128k positions. Each
// pair is slowed down by a factor of its own, from one of two lists, by the length of the text.
#pragma once

#include <string>

#include "engine/config/config_keys.h"
#include "engine/config/json_text.h"
#include "engine/config/model_spec.h"

namespace dstrain {

/// Of what the block leaves to the rest of the config, finish_longrope() takes 0 away.
RopeScaling read_longrope(const std::string& path, const JsonNode& node);
/// Completes such a scaling, once the model's other numbers are known, as transformers does. `path`
/// is the key it was read from.
void finish_longrope(ConfigDraft& draft, const WrittenKeys& written, const std::string& path);
std::string longrope_json(const RopeScaling& scaling);

}  // namespace dstrain
