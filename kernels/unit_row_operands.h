// The checks that all devices share of the operands of a head of unit rows. Meanings: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"

namespace dstrain {

/// Gives N and V.
inline Matrix expect_divided_columns(const ConstTensor& x_NV, const ConstTensor& squares_V) {
  const Matrix size = as_matrix(x_NV);
  expect_compute_dtype(x_NV.dtype(), "divided columns");
  expect(squares_V, "divided columns: squares", DType::kF32, size.width);
  return size;
}

/// Gives V and C.
inline Matrix expect_projected_rows(const ConstTensor& w_VC,
                                    const ConstTensor& squares_V,
                                    const ConstTensor& dw_VC) {
  const Matrix size = as_matrix(w_VC);
  expect(squares_V, "projected rows: squares", DType::kF32, size.rows);
  expect(dw_VC, "projected rows: dw", DType::kF32, w_VC.numel());
  return size;
}

}  // namespace dstrain
