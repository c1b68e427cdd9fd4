// The checks that all devices share of the operands of copy_blocks.
#pragma once

#include <algorithm>

#include "kernels/block_copy.h"
#include "kernels/core/expect.h"
#include "kernels/op_kinds.h"

namespace dstrain {

inline void expect_within(const BlockCopy& copy,
                          const BlockPlaces& places,
                          const ConstTensor& tensor,
                          std::string_view name) {
  std::int64_t end = places.first + copy.run;
  for (int d = 0; d < kBlockCounts; ++d) {
    check(places.strides[d] >= 0, "copied blocks: a stride of {} in {}", places.strides[d], name);
    end += (copy.counts[d] - 1) * places.strides[d];
  }
  check(places.first >= 0 && end <= tensor.numel(),
        "copied blocks: elements [{}, {}) of {}, which has {}", places.first, end, name,
        tensor.numel());
  check(!tensor.empty(), "copied blocks: {} has no memory", name);
}

/// Checks that no two runs meet: in order of their strides, each is at least as long as what the
/// counts before it take.
inline void expect_apart(const BlockCopy& copy) {
  int order[kBlockCounts] = {0, 1, 2};
  std::sort(std::begin(order), std::end(order),
            [&](int a, int b) { return copy.to.strides[a] < copy.to.strides[b]; });
  std::int64_t taken = copy.run;
  for (const int d : order) {
    check(copy.counts[d] == 1 || copy.to.strides[d] >= taken,
          "copied blocks: a stride of {} between runs that take {}", copy.to.strides[d], taken);
    taken += (copy.counts[d] - 1) * copy.to.strides[d];
  }
}

/// Checks the operands; gives whether there is anything to copy.
inline bool expect_block_copy(const BlockCopy& copy,
                              const ConstTensor& from,
                              const ConstTensor& to,
                              Write write) {
  check(*std::min_element(std::begin(copy.counts), std::end(copy.counts)) >= 0 && copy.run >= 0,
        "copied blocks: {} × {} × {} runs of {}", copy.counts[0], copy.counts[1], copy.counts[2],
        copy.run);
  check(from.dtype() == to.dtype(), "copied blocks: {} to {}", name_of(from.dtype()),
        name_of(to.dtype()));
  if (write == Write::kAdd) {
    expect_compute_dtype(to.dtype(), "copied blocks: what is added to");
  }
  if (copy.runs() == 0 || copy.run == 0) {
    return false;
  }
  expect_within(copy, copy.from, from, "what is read");
  expect_within(copy, copy.to, to, "what is written");
  expect_apart(copy);
  return true;
}

}  // namespace dstrain
