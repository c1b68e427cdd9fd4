// Where ZeRO put each parameter. DeepSpeed flattens the parameters of a group and splits them over
// the data-parallel ranks; it writes down only their order and shapes, so this counts elements.
//
//   stages 1, 2   | a a a a b b|b b b c c c| c c c d d pad|   the group split into equal ranges
//   stage 3       | a a b b c c| a a b b c c| a pad b pad c c| each parameter split, padded
//
// Every rank's fp32 values and moments are laid out alike. fp32 values of stages 1 and 2 come
// without the padding, moments with it (or without, from an elastic checkpoint).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"
#include "engine/checkpoint/foreign/deepspeed/model_states.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

/// The `zero_stage` of an optimizer state; 1 where DeepSpeed's BF16 optimizer left it out.
int read_zero_stage(const TorchFile& optim_states);

struct ZeroLayout {
  DeepSpeedTensors tensors;                    ///< the trained ones
  std::optional<std::int64_t> optimizer_step;  ///< as the optimizer counts
};

/// One model-parallel rank's parameters. `optim_states` are those of its dp ranks in order.
/// Throws CheckpointError where counts do not agree.
ZeroLayout lay_out_zero(const TorchFile& model_states,
                        std::span<const TorchFile* const> optim_states,
                        StoredValues& values);

}  // namespace dstrain
