// Shares the blocks of a model out over the stages of a pipeline so that the most expensive stage
// is as cheap as possible, the loss head counted with the last one. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/model_spec.h"

namespace dstrain {

/// The number of blocks of each stage, in order, each ≥ 1. `stages` ≤ blocks. Costs are FLOPs a
/// token; the embedding is a look-up and costs nothing.
std::vector<std::int64_t> balanced_partition(const ModelSpec& model,
                                             std::int64_t sequence_length,
                                             int stages);

/// The same for costs in any unit: `head` is added to the last stage.
std::vector<std::int64_t> balanced_partition(std::int64_t blocks,
                                             double block_cost,
                                             double head_cost,
                                             int stages);

}  // namespace dstrain
