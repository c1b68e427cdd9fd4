// The checks of a norm's operands that all devices share. Shapes: kernels/ops.h.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

/// Returns the number of tokens and the width.
inline Matrix expect_norm_forward(const NormForward& norm) {
  const Matrix x = as_matrix(norm.x_NC);
  const DType dtype = norm.x_NC.dtype();
  expect(norm.y_NC, "norm: y", dtype, x.rows * x.width);
  expect(norm.weight_C, "norm: weight", dtype, x.width);
  expect_optional(norm.bias_C, "norm: bias", dtype, x.width);
  expect(norm.stats_N2, "norm: stats", DType::kF32, x.rows * 2);
  if (!norm.delta_NC.empty()) {
    expect(norm.delta_NC, "norm: delta", dtype, x.rows * x.width);
    expect(norm.residual_NC, "norm: residual", dtype, x.rows * x.width);
  }
  return x;
}

/// Does the same for backward.
inline Matrix expect_norm_backward(const NormBackward& norm) {
  const Matrix x = as_matrix(norm.x_NC);
  const DType dtype = norm.x_NC.dtype();
  expect(norm.dy_NC, "norm: dy", dtype, x.rows * x.width);
  expect(norm.dx_NC, "norm: dx", dtype, x.rows * x.width);
  expect(norm.weight_C, "norm: weight", dtype, x.width);
  expect(norm.stats_N2, "norm: stats", DType::kF32, x.rows * 2);
  expect(norm.dweight_C, "norm: dweight", DType::kF32, x.width);
  expect_optional(norm.dbias_C, "norm: dbias", DType::kF32, x.width);
  return x;
}

}  // namespace dstrain
