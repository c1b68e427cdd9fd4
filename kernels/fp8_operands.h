// The checks of the operands of products in 8 bits that all devices share, so that none takes what
// another refuses. Meanings: kernels/ops.h.
#pragma once

#include <string_view>

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

inline void expect_fp8(const ConstTensor& tensor, std::string_view name) {
  check(tensor.dtype() == DType::kF8E4M3 || tensor.dtype() == DType::kF8E5M2,
        "{} is {}, expected f8e4m3 or f8e5m2", name, name_of(tensor.dtype()));
}

/// The dtype that is converted to; F8E4M3 where only amax is wanted.
inline DType expect_quantization(const Quantization& quantization) {
  const auto [rows, columns] = as_matrix(quantization.x_RC);
  const Tensor& q = quantization.q_RC;
  const Tensor& transposed = quantization.q_CR;
  expect(quantization.amax, "amax", DType::kF32, 1);
  if (q.empty() && transposed.empty()) {
    return DType::kF8E4M3;
  }
  const Tensor& either = q.empty() ? transposed : q;
  expect_fp8(either, "q");
  expect(quantization.scale, "the scale", DType::kF32, 1);
  expect_optional(q, "q", either.dtype(), rows * columns);
  expect_optional(transposed, "the transposed q", either.dtype(), rows * columns);
  check(transposed.empty() || (rows % kF8Multiple == 0 && columns % kF8Multiple == 0),
        "a tensor of {} × {} is transposed in 8 bits, expected multiples of {}", rows, columns,
        kF8Multiple);
  return either.dtype();
}

inline void expect_scaled_product(const ScaledTensor& a_MK,
                                  const ScaledTensor& b_NK,
                                  const ConstTensor& bias_N,
                                  const ConstTensor& c_MN,
                                  Write write) {
  for (const ScaledTensor& operand : {a_MK, b_NK}) {
    expect_fp8(operand.q, "an operand of a product in 8 bits");
    expect(operand.scale, "its scale", DType::kF32, 1);
  }
  check(a_MK.q.shape().rank() == 2 && b_NK.q.shape().rank() == 2 &&
            a_MK.q.dim(1) == b_NK.q.dim(1) && c_MN.shape() == Shape{a_MK.q.dim(0), b_NK.q.dim(0)},
        "a product of {} and {} (transposed) into {}", a_MK.q.shape().to_string(),
        b_NK.q.shape().to_string(), c_MN.shape().to_string());
  const std::int64_t m = a_MK.q.dim(0);
  const std::int64_t n = b_NK.q.dim(0);
  const std::int64_t k = a_MK.q.dim(1);
  check(a_MK.q.dtype() == DType::kF8E4M3 || b_NK.q.dtype() == DType::kF8E4M3,
        "both operands of a product in 8 bits are f8e5m2, which no tensor core multiplies");
  check(c_MN.dtype() == DType::kBF16 || c_MN.dtype() == DType::kF32,
        "a product in 8 bits into {}, expected bf16 or f32", name_of(c_MN.dtype()));
  check(write == Write::kOverwrite || c_MN.dtype() == DType::kF32,
        "a product in 8 bits is added to {}, expected f32", name_of(c_MN.dtype()));
  check(m % kF8Multiple == 0 && n % kF8Multiple == 0 && k % kF8Multiple == 0,
        "a product in 8 bits of {} × {} × {}, expected multiples of {}", m, n, k, kF8Multiple);
  expect_optional(bias_N, "bias", DType::kBF16, n);
  check(bias_N.empty() || (c_MN.dtype() == DType::kBF16 && write == Write::kOverwrite),
        "a product in 8 bits with bias into {}", name_of(c_MN.dtype()));
}

}  // namespace dstrain
