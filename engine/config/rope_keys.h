// The keys of rotary positions: "rope_scaling" of older config.json files, and "rope_parameters",
// which also carries rope_theta, of newer ones.
#pragma once

#include <string>

#include "engine/config/json_text.h"
#include "engine/config/model_spec.h"
#include "engine/config/rope_block.h"

namespace dstrain {

/// Reads such a block. `newer` says that it is rope_parameters, `by_layer` that the family gives
/// them for layers with and without a window, of which only the latter may be scaled.
RopeBlock read_rope_block(const std::string& path, const JsonNode& node, bool newer, bool by_layer);
/// The values of such a key as a JSON Schema.
std::string rope_block_shape(bool newer);
/// The scaling as the JSON of "rope_scaling"; "" where there is none.
std::string rope_scaling_json(const RopeScaling& scaling);

}  // namespace dstrain
