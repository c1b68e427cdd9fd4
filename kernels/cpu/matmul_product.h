// One product of two dense matrices, as the ways to compute it hand it on to one another.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
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

/// T: BF16 or F16.
template <typename T>
struct NarrowProduct {
  ProductForm form;
  const T* a = nullptr;
  const T* b = nullptr;
  const T* bias = nullptr;  ///< [n], added to each row; optional, only with kOverwrite
  void* c = nullptr;
  DType c_dtype = DTypeOf<T>::value;  ///< or f32; kAdd only into f32
};
using Bf16Product = NarrowProduct<BF16>;

/// In f32; C's rows are `c_stride` elements apart, A and B are dense.
struct F32Product {
  ProductForm form;
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  std::int64_t c_stride = 0;
};

}  // namespace dstrain
