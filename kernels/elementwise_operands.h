// The checks, shared by all devices, of the operands of elementwise operations: additions,
// conversions, activations, and sums over all elements. Meanings: kernels/ops.h.
#pragma once

#include "kernels/core/expect.h"

namespace dstrain {

/// Returns the number of elements of each.
inline std::int64_t expect_add(const ConstTensor& a, const ConstTensor& b, const ConstTensor& y) {
  expect(b, "add: b", a.dtype(), a.numel());
  expect(y, "add: y", a.dtype(), a.numel());
  return a.numel();
}
inline std::int64_t expect_activation(const ConstTensor& x_NF, const ConstTensor& y_NF) {
  expect(y_NF, "activation: y", x_NF.dtype(), x_NF.numel());
  return x_NF.numel();
}
inline std::int64_t expect_activation_backward(const ConstTensor& x_NF,
                                               const ConstTensor& dy_NF,
                                               const ConstTensor& dx_NF) {
  expect(dy_NF, "activation: dy", x_NF.dtype(), x_NF.numel());
  expect(dx_NF, "activation: dx", x_NF.dtype(), x_NF.numel());
  return x_NF.numel();
}

/// Checks for the same number of elements, each tensor of a compute dtype of its own.
inline void expect_conversion(const ConstTensor& from,
                              std::string_view from_name,
                              const ConstTensor& to,
                              std::string_view to_name) {
  expect(to, to_name, to.dtype(), from.numel());
  expect_compute_dtype(from.dtype(), from_name);
  expect_compute_dtype(to.dtype(), to_name);
}

/// Checks two tensors gate‖up, [N, 2F]; returns N and F.
inline Matrix expect_gated(const ConstTensor& gate_up,
                           const ConstTensor& d_gate_up,
                           const ConstTensor& y_NF) {
  for (const ConstTensor& both : {gate_up, d_gate_up}) {
    expect(both, "gated activation: gate_up", y_NF.dtype(), 2 * y_NF.numel());
  }
  return as_matrix(y_NF);
}

/// Checks a sum into one number.
inline void expect_sum(const ConstTensor& values, DType dtype, const ConstTensor& total) {
  expect(values, "values", dtype, values.numel());
  expect(total, "total", DType::kF64, 1);
}

/// Checks a sum over the bits that the values have as `as`.
inline void expect_bit_sums(const ConstTensor& values, DType as, const ConstTensor& sums_4) {
  check(as == values.dtype() || values.dtype() == DType::kF32, "bit_sums: {} as {}",
        name_of(values.dtype()), name_of(as));
  expect(sums_4, "bit_sums: the sums", DType::kI32, 4);
}

/// Checks [N, O] and its bias, or the bias's gradient, [O]; returns N and O.
inline Matrix expect_rows_and_bias(const ConstTensor& y_NO,
                                   const ConstTensor& bias_O,
                                   DType of_bias) {
  const Matrix size = as_matrix(y_NO);
  expect(bias_O, "bias", of_bias, size.width);
  return size;
}

}  // namespace dstrain
