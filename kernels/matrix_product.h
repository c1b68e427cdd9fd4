// MatrixProduct: the matrix product that an operation of a linear layer amounts to, with the checks
// of its operands that all devices share. Letters: kernels/ops.h.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

/// C[m, n] = or += A[m, k] · B[k, n].
struct ProductForm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool a_transposed = false;  ///< A is stored as [k, m]
  bool b_transposed = false;  ///< B is stored as [n, k]
  Write write = Write::kOverwrite;
};

/// Both factors have one compute dtype, the product has it too or is f32.
struct MatrixProduct {
  ConstTensor a;
  ConstTensor b;
  ConstTensor bias{};  ///< [n] of the factors' dtype, added to each row; optional
  Tensor c;
  bool a_transposed = false;
  bool b_transposed = false;
  Write write = Write::kOverwrite;  ///< kAdd: only into f32, without a bias
};

inline MatrixProduct forward_product(ConstTensor x_NI,
                                     ConstTensor w_OI,
                                     ConstTensor bias_O,
                                     Tensor y_NO) {
  return {.a = x_NI, .b = w_OI, .bias = bias_O, .c = y_NO, .b_transposed = true};
}
inline MatrixProduct backward_input_product(ConstTensor dy_NO, ConstTensor w_OI, Tensor dx_NI) {
  return {.a = dy_NO, .b = w_OI, .c = dx_NI};
}
inline MatrixProduct backward_weight_product(ConstTensor dy_NO,
                                             ConstTensor x_NI,
                                             Tensor dw_OI,
                                             Write write) {
  expect(dw_OI, "the weight's gradient", DType::kF32, dw_OI.numel());
  return {.a = dy_NO, .b = x_NI, .c = dw_OI, .a_transposed = true, .write = write};
}

/// Checks the product's operands and returns its sizes.
inline ProductForm form_of(const MatrixProduct& product) {
  const auto& [a, b, bias, c, a_transposed, b_transposed, write] = product;
  check(a.shape().rank() == 2 && b.shape().rank() == 2,
        "a matrix product of tensors of shapes {} and {}", a.shape().to_string(),
        b.shape().to_string());
  expect_compute_dtype(a.dtype(), "a matrix");
  check(a.dtype() == b.dtype() && (c.dtype() == DType::kF32 || c.dtype() == a.dtype()),
        "a matrix product of {} and {} into {}", name_of(a.dtype()), name_of(b.dtype()),
        name_of(c.dtype()));
  const ProductForm form = {.m = a.dim(a_transposed ? 1 : 0),
                            .n = b.dim(b_transposed ? 0 : 1),
                            .k = a.dim(a_transposed ? 0 : 1),
                            .a_transposed = a_transposed,
                            .b_transposed = b_transposed,
                            .write = write};
  check(b.dim(b_transposed ? 1 : 0) == form.k && c.shape() == Shape{form.m, form.n},
        "a matrix product of {}{} and {}{} into {}", a.shape().to_string(),
        a_transposed ? " transposed" : "", b.shape().to_string(), b_transposed ? " transposed" : "",
        c.shape().to_string());
  expect_optional(bias, "bias", a.dtype(), form.n);
  check(write == Write::kOverwrite || (c.dtype() == DType::kF32 && bias.empty()),
        "a matrix product is added to {}, expected f32 and no bias", name_of(c.dtype()));
  return form;
}

}  // namespace dstrain
