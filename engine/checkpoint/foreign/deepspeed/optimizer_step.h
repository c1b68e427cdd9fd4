// The step that an optimizer counts: torch keeps it as a number or as a tensor of one element.
#pragma once

#include <cstdint>

#include "engine/checkpoint/foreign/pytorch/pickle_value.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

/// A value of `file`. Throws CheckpointError if it is neither.
std::int64_t read_optimizer_step(const PickleValue& step, const TorchFile& file);

}  // namespace dstrain
