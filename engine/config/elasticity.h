// DeepSpeed's elasticity: one batch that many numbers of ranks can share, from the largest batch
// and the micro-batches that the user accepts. Its formulas, version 0.1 and 0.2, as DeepSpeed
// 0.19.6 computes them (deepspeed/elasticity/elasticity.py).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/config.h"

namespace dstrain {

/// The batch that an elasticity block means for `ranks` data-parallel ranks. Sizes are sequences.
struct ElasticBatch {
  std::int64_t train_batch_size = 0;  ///< 0: version 0.2 found none that is small enough
  std::vector<std::int64_t> valid_ranks;
  /// The largest of the block's micro-batches that divides a rank's share. Absent: none does, or
  /// `ranks` is not valid.
  std::optional<std::int64_t> micro_batch_size;
};

/// Returns nothing where DeepSpeed's formulas have no answer: a micro-batch larger than the largest
/// batch (of a node, in version 0.2), or nodes that do not divide by model_parallel_size.
std::optional<ElasticBatch> elastic_batch(const ElasticityConfig& config, std::int64_t ranks);

}  // namespace dstrain
