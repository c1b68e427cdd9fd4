// config.json of a Hugging Face folder: everything that transformers must know to build the model,
// in its older and in its newer spelling.
#pragma once

#include <optional>
#include <string>

#include "engine/config/model_spec.h"
#include "kernels/core/dtype.h"

namespace dstrain {

/// `original`: the config.json that the model came with, whose other keys (token ids, attention
/// windows) are kept; it counts only if it describes this very model.
std::string huggingface_config(const ModelSpec& model,
                               DType dtype,
                               const std::optional<std::string>& original);

}  // namespace dstrain
