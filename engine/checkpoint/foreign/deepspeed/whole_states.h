// Finds where an optimizer without ZeRO put the masters and moments. It knows parameters by number,
// in the order of its groups, and each group has them in the model's order:
//
//   fp32            {state: {0: {exp_avg, …}, …}, param_groups: [{params: [0, 1, …]}, …]}
//   16 bits         the same as optimizer_state_dict, and fp32_groups: [[master, …], …]
//   16 bits, fused  a group is one flat tensor: fp32_groups_flat: [masters, …]
//
// So names are found again: a master is the parameter that it rounds to; without masters, the next
// of its shape.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"
#include "engine/checkpoint/foreign/deepspeed/model_states.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

struct WholeStates {
  bool found = false;                          ///< false: `tensors` is as it was
  std::optional<std::int64_t> optimizer_step;  ///< as the optimizer counts
};

/// Gives the tensors of a module (add_module) their masters and moments. Nothing is found where the
/// order leaves open which parameter a state is of. Throws CheckpointError where the file is
/// broken.
WholeStates add_whole_states(DeepSpeedTensors& tensors,
                             const TorchFile& model_states,
                             StoredValues& values);

}  // namespace dstrain
