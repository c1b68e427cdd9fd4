// How many tokens an expert takes, where it drops those beyond its capacity: a choice that finds
// its expert full counts nothing, and the weights of the token's other choices stay as they are
// (as in Megatron-Core, moe_utils.py; DeepSpeed divides them by their sum anew). Capacity is of a
// sequence, first come first served, so that what is dropped depends on neither micro-batches nor
// ranks, nor on later tokens. Lepikhin et al. 2020 (GShard, §2.2) have it for a group of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/model/layer_shape.h"

namespace dstrain {

/// The most tokens of a sequence that one expert takes, ceil(factor · k · T / E); 0: all.
inline std::int64_t expert_capacity(const LayerShape& shape) {
  const double factor = shape.experts.capacity_factor;
  const ExpertsSpec& spec = shape.layer.feed_forward.experts.value();
  if (factor == 0.0) {
    return 0;
  }
  const double even =
      static_cast<double>(shape.sequence * spec.per_token) / static_cast<double>(spec.count);
  const double capacity = std::ceil(even * factor);
  return capacity >= static_cast<double>(shape.sequence) ? 0 : static_cast<std::int64_t>(capacity);
}

/// The most rows that some `experts` of a layer have of a micro-batch of one rank, or of a tile of
/// it: a token has at most one of each expert.
inline std::int64_t most_rows_of(const LayerShape& shape, std::int64_t experts) {
  const ExpertsSpec& spec = shape.layer.feed_forward.experts.value();
  const std::int64_t chosen = shape.mlp_tile() * std::min(spec.per_token, experts);
  const std::int64_t capacity = expert_capacity(shape);
  return capacity == 0 ? chosen : std::min(chosen, shape.batch * experts * capacity);
}

}  // namespace dstrain
