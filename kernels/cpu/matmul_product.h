// One product of two dense matrices, in the form that the ways to compute it pass on to one
// another.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/matrix_product.h"

namespace dstrain {

/// T is BF16 or F16.
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

/// A product in f32; C's rows are `c_stride` elements apart, A and B are dense.
struct F32Product {
  ProductForm form;
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  std::int64_t c_stride = 0;
};

}  // namespace dstrain
