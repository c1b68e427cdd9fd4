// Products of bf16 matrices by oneDNN: C = A · B, sums in f32. Primitives are made once for each
// kind of problem and kept, so that a call is a look-up and an execution.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/core/dtype.h"
#include "kernels/ops.h"

namespace dstrain {

/// C[m, n] = or += A[m, k] · B[k, n], all dense and row-major as they are stored.
struct ProductForm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool a_transposed = false;  ///< A is stored as [k, m]
  bool b_transposed = false;  ///< B is stored as [n, k]
  Write write = Write::kOverwrite;

  friend bool operator==(const ProductForm&, const ProductForm&) = default;
};

struct Bf16Product {
  ProductForm form;
  const BF16* a = nullptr;
  const BF16* b = nullptr;
  const BF16* bias = nullptr;  ///< [n], added to each row; optional, only with kOverwrite
  void* c = nullptr;
  DType c_dtype = DType::kBF16;  ///< or f32; kAdd only into f32
};

/// For one calling thread at a time, which it makes `threads` OpenMP threads of.
class Bf16Matmul {
 public:
  explicit Bf16Matmul(int threads);
  Bf16Matmul(const Bf16Matmul&) = delete;
  Bf16Matmul& operator=(const Bf16Matmul&) = delete;
  ~Bf16Matmul();

  /// False, with nothing done, where oneDNN has no bf16 kernel for this processor (before
  /// AVX-512).
  [[nodiscard]] bool run(const Bf16Product& product);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
