// Matrix products through cuBLASLt: descriptors made and an algorithm chosen once per shape, in f32
// accumulation. f32 operands are multiplied in full f32, never in TF32 unless asked.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "kernels/core/dtype.h"

namespace dstrain {

/// C[m][n] = or += op(A) · op(B) (+ bias[n]), everything dense and row-major: A is [m][k], or
/// [k][m] where a_transposed; B is [k][n], or [n][k] where b_transposed.
struct CudaProduct {
  std::int64_t m, n, k;
  bool a_transposed;
  bool b_transposed;
  bool adds;
  DType in;   ///< of A, B and the bias
  DType out;  ///< of C: f32, or as `in`
  const void* a;
  const void* b;
  const void* bias;  ///< nullptr: none; only where out is as in
  void* c;
};

struct CudaMatmulOptions {
  bool tf32 = false;  ///< products of f32 in TF32, whose mantissa has 10 bits
};

class CudaMatmul {
 public:
  explicit CudaMatmul(const CudaMatmulOptions& options);
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;
  ~CudaMatmul();

  /// The stream's device must be current. m, n and k are not 0.
  void run(const CudaProduct& product, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
