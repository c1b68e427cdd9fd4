// The checks that all devices share of the operands of low-rank adapters. Meanings: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

/// N tokens, C columns, R ranks.
struct LowRankSizes {
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t ranks;
};

/// `factor` is T [R, C], or Tᵀ [C, R] where transposed, of the dtype given.
inline LowRankSizes expect_low_rank(const ConstTensor& narrow_NR,
                                    const ConstColumns& wide_NC,
                                    const ConstTensor& factor,
                                    DType dtype_of_factor,
                                    bool transposed) {
  const DType dtype = wide_NC.dtype();
  expect_compute_dtype(dtype, "low rank: columns");
  const auto [tokens, ranks] = as_matrix(narrow_NR);
  check(tokens == wide_NC.rows() && ranks > 0, "low rank: {} rows of {} numbers, for {} rows of {}",
        tokens, ranks, wide_NC.rows(), wide_NC.width());
  expect(narrow_NR, "low rank: numbers of ranks", dtype, tokens * ranks);
  const auto [rows, width] = as_matrix(factor);
  expect(factor, "low rank: factor", dtype_of_factor, ranks * wide_NC.width());
  check((transposed ? width : rows) == ranks, "low rank: a factor of shape {}{} for {} ranks",
        factor.shape().to_string(), transposed ? " transposed" : "", ranks);
  return {.tokens = tokens, .columns = wide_NC.width(), .ranks = ranks};
}

}  // namespace dstrain
