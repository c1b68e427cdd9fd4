// The checks that all devices share of the operands of magnitudes of rows. Meanings: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/magnitude_rows.h"

namespace dstrain {

inline MagnitudeRows expect_magnitudes(const ConstColumns& x,
                                       const ConstColumns& y,
                                       const ConstTensor& magnitudes_O,
                                       const ConstTensor& squares_O) {
  expect_compute_dtype(x.dtype(), "magnitudes: x");
  check(y.dtype() == x.dtype() && y.rows() == x.rows() && y.width() == x.width(),
        "magnitudes: {} × {} of {} beside x, which is {} × {} of {}", y.rows(), y.width(),
        name_of(y.dtype()), x.rows(), x.width(), name_of(x.dtype()));
  if (!magnitudes_O.empty()) {
    expect(magnitudes_O, "magnitudes", x.dtype(), x.width());
    expect(squares_O, "magnitudes: squares", DType::kF32, x.width());
  }
  return {.rows = x.rows(), .width = x.width(), .x_stride = x.stride(), .y_stride = y.stride()};
}

/// The strides are those of x, dy and dx.
inline MagnitudeRows expect_magnitudes_backward(const ConstColumns& dy,
                                                const ConstColumns& x,
                                                const ConstTensor& magnitudes_O,
                                                const ConstTensor& squares_O,
                                                const Columns& dx,
                                                const Tensor& d_magnitudes_O) {
  MagnitudeRows rows = expect_magnitudes(x, dy, magnitudes_O, squares_O);
  rows.dx_stride = expect_magnitudes(x, dx, magnitudes_O, squares_O).y_stride;
  if (!magnitudes_O.empty()) {
    expect(d_magnitudes_O, "magnitudes: their gradient", DType::kF32, x.width());
  }
  return rows;
}

inline Matrix expect_row_products(const ConstTensor& a_OR,
                                  const ConstTensor& b_OR,
                                  const Tensor& sums_O) {
  const Matrix size = as_matrix(a_OR);
  expect_compute_dtype(a_OR.dtype(), "row products: a");
  expect(b_OR, "row products: b", DType::kF32, a_OR.numel());
  expect(sums_O, "row products: sums", DType::kF32, size.rows);
  return size;
}

}  // namespace dstrain
