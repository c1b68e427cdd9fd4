// Keys of a DeepSpeed config that are not DeepSpeed's: comments, and the arguments that GPT-NeoX
// keeps in the same file for its own Python.
#pragma once

#include <string>

#include "engine/config/json_text.h"

namespace dstrain {

/// "_comment", "comment_1", "//": text for people.
bool is_comment_key(const std::string& name);

/// Whether the file is one of GPT-NeoX's: several of its arguments stand at the top level.
bool is_neox_config(const JsonNode& root);

/// Whether GPT-NeoX's Python reads the top-level key, in a file of its own.
bool is_neox_key(const std::string& name);

}  // namespace dstrain
