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

struct Bf16Product {
  ProductForm form;
  const BF16* a = nullptr;
  const BF16* b = nullptr;
  const BF16* bias = nullptr;  ///< [n], added to each row; optional, only with kOverwrite
  void* c = nullptr;
  DType c_dtype = DType::kBF16;  ///< or f32; kAdd only into f32
};

}  // namespace dstrain
