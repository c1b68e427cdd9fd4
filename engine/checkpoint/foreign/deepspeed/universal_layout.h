// DeepSpeed's universal checkpoints: a folder for each parameter, a file for each of its states,
// with nothing split over ranks.
//
//   zero/wte.weight/fp32.pt  exp_avg.pt  exp_avg_sq.pt  step.pt
#pragma once

#include <deque>
#include <filesystem>
#include <span>

#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"
#include "engine/checkpoint/foreign/deepspeed/model_states.h"
#include "engine/checkpoint/foreign/deepspeed/zero_layout.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

/// The parameters under `zero`. Some were written flat (from ZeRO stage 3): they get their shapes
/// from `model_states`, of which there must be one model-parallel rank then. `files` owns what is
/// opened.
ZeroLayout lay_out_universal(const std::filesystem::path& zero,
                             std::span<const TorchFile* const> model_states,
                             std::deque<TorchFile>& files,
                             StoredValues& values);

}  // namespace dstrain
