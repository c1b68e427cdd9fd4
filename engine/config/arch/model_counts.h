// How many parameters a model has, and how many FLOPs a token takes, counted from its tensors.
#pragma once

#include <cstdint>

#include "engine/config/arch/architecture.h"

namespace dstrain {

/// Tied weights count once.
std::int64_t num_parameters(const Architecture& architecture);
/// Those that a token goes through: of experts, the ones it chooses.
std::int64_t active_parameters(const Architecture& architecture);

/// FLOPs of forward and backward of a block for one token of sequences of T: six for each weight
/// that it goes through (Kaplan et al. 2020, §2.1: two forward, four backward); attention's two
/// products of T × D per head likewise, of which a causal mask leaves half, and a window of W
/// leaves W - W² / 2T. Recomputation is not counted.
double block_flops_per_token(const Architecture& architecture,
                             const LayerSpec& layer,
                             std::int64_t sequence_length);
/// The same of the loss head.
double head_flops_per_token(const Architecture& architecture);
/// Of all blocks and the head.
double flops_per_token(const Architecture& architecture, std::int64_t sequence_length);

}  // namespace dstrain
