// Shares the blocks of a model out over the stages of a pipeline so that the most expensive stage
// is as cheap as possible, the loss head counted with the last one. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config/model_spec.h"

namespace dstrain {

/// The number of blocks of each stage, in order, each ≥ 1. `stages` ≤ blocks. Costs are FLOPs a
/// token, each block with its own; the embedding is a look-up and costs nothing.
std::vector<std::int64_t> balanced_partition(const ModelSpec& model,
                                             std::int64_t sequence_length,
                                             int stages);

/// The same for costs in any unit: `head_cost` is added to the last stage. They are whole numbers,
/// so that stages of equal blocks cost the same to the last digit wherever they begin.
std::vector<std::int64_t> balanced_partition(std::span<const std::int64_t> block_costs,
                                             std::int64_t head_cost,
                                             int stages);

}  // namespace dstrain
