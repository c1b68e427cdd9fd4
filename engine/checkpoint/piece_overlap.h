// Finds the elements that two pieces of a tensor have in common, however they were cut: the whole
// of resuming on another number of ranks. Pieces of the same box meet in at most one run; those of
// different boxes in one run for each row that the boxes share.
//
//   stored box, flat [a, b)   ┌──────┐        row of the intersection: `count` elements that lie
//                             │   ┌──┼───┐    side by side in both pieces
//                             └───┼──┘   │
//   wanted box, flat [c, d)       └──────┘
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/plan/shard_map.h"

namespace dstrain {

/// `count` elements at position `stored` of one piece and `wanted` of the other; positions count
/// from the first element of each piece's flat range.
struct OverlapRun {
  std::int64_t stored = 0;
  std::int64_t wanted = 0;
  std::int64_t count = 0;
  friend bool operator==(const OverlapRun&, const OverlapRun&) = default;
};

/// A sub-box of a tensor, and a flat range of the box's row-major order.
struct BoxedRange {
  Shape start;
  Shape extent;
  Range flat;
};

/// Calls `visit` for each run, in row-major order. Both must be boxes of the same tensor.
void for_each_overlap(const BoxedRange& stored,
                      const BoxedRange& wanted,
                      const std::function<void(const OverlapRun&)>& visit);

}  // namespace dstrain
