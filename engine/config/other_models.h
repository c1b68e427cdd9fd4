// Architectures of a Hugging Face config.json that dstrain does not train. They are refused before
// the keys are looked at, since complaints about their unknown keys, and about names that look like
// a typing error ("mixtral"), would mislead.
#pragma once

#include "engine/config/json_text.h"

namespace dstrain {

/// Throws ConfigError if model.model_type of the run `root` is a name that is not one of
/// model_families(). What is not a name is left to the key's own check.
void refuse_other_models(const JsonNode& root);

}  // namespace dstrain
