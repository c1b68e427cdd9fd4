// The checks that all devices share of columns that are to become orthonormal. Meanings:
// ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/math/orthonormal.h"

namespace dstrain {

/// Gives N and R.
inline Matrix expect_columns(const ConstTensor& p_NR) {
  expect(p_NR, "orthonormalize_columns: p", DType::kF32, p_NR.numel());
  const Matrix size = as_matrix(p_NR);
  check(size.width <= kMostOrthonormalColumns,
        "orthonormalize_columns: {} columns, expected at most {}", size.width,
        kMostOrthonormalColumns);
  return size;
}

}  // namespace dstrain
