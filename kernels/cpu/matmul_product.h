// One product of two dense matrices, in the form that the ways to compute it pass on to one
// another.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/matrix_product.h"

namespace dstrain {

/// T is float, BF16 or F16.
template <typename T>
struct DenseProduct {
  ProductForm form;
  const T* a = nullptr;
  const T* b = nullptr;
  const T* bias = nullptr;  ///< [n], added to each row; optional, only with kOverwrite
  void* c = nullptr;
  DType c_dtype = DTypeOf<T>::value;  ///< or f32; kAdd only into f32
};
using Bf16Product = DenseProduct<BF16>;

}  // namespace dstrain
