// What copy_blocks copies: runs of neighbouring elements whose places in two tensors follow three
// counts, which puts heads or chunks of rows side by side for an exchange, and back.
//
//   y[to.first + Σ i_d · to.strides[d] + c] = or += x[from.first + Σ i_d · from.strides[d] + c]
//   for i_d in [0, counts[d]) and c in [0, run)
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

constexpr int kBlockCounts = 3;

/// Where the runs lie in one tensor, in elements.
struct BlockPlaces {
  std::int64_t first = 0;
  std::int64_t strides[kBlockCounts] = {};
};

struct BlockCopy {
  std::int64_t counts[kBlockCounts] = {1, 1, 1};
  std::int64_t run = 0;  ///< neighbours that lie side by side in both
  BlockPlaces from;
  BlockPlaces to;  ///< no two runs meet

  [[nodiscard]] DSTRAIN_HD std::int64_t runs() const { return counts[0] * counts[1] * counts[2]; }
  /// The element at which run `index` begins, of from or of to.
  [[nodiscard]] DSTRAIN_HD std::int64_t place(const BlockPlaces& places, std::int64_t index) const {
    return places.first + index % counts[2] * places.strides[2] +
           index / counts[2] % counts[1] * places.strides[1] +
           index / counts[2] / counts[1] * places.strides[0];
  }
};

/// The same copy, in longer runs where neighbouring runs lie side by side in both tensors.
inline BlockCopy in_longest_runs(BlockCopy copy) {
  for (int d = kBlockCounts - 1; d >= 0; --d) {
    const bool side_by_side = copy.from.strides[d] == copy.run && copy.to.strides[d] == copy.run;
    if (copy.counts[d] > 1 && !side_by_side) {
      break;
    }
    copy.run *= copy.counts[d];
    copy.counts[d] = 1;
  }
  return copy;
}

}  // namespace dstrain
