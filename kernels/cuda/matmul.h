// Matrix products through cuBLASLt: descriptors made and an algorithm chosen once per shape, in f32
// accumulation. f32 operands are multiplied in full f32, never in TF32 unless asked.
//
// The algorithm is cuBLASLt's first proposal or, given a file, the fastest of its first few, timed
// when a shape is first met and kept (algorithm_file.h). The timing also decides whether an
// activation is computed within the product or after it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_product.h"

namespace dstrain {

/// Whether cuBLASLt may add this bias: its kernels read 16 bytes of it at once, and its proposals
/// do not look at where it begins (they are given those of A, B and C alone).
bool can_add_bias(const CudaProduct& product);
/// Whether cuBLASLt's rules for an activation's operands allow this one. Only bf16 is allowed: it
/// does not say how exact its GELU is (llm.c's authors saw slightly worse losses with it, pull
/// request 653), and GPUs' own tanh has 11 bits, fewer than f16 and f32.
bool can_be_activated(const CudaProduct& product);

struct CudaMatmulOptions {
  bool tf32 = false;            ///< products of f32 in TF32, whose mantissa has 10 bits
  std::string algorithms_file;  ///< empty: nothing is timed
};

class CudaMatmul {
 public:
  CudaMatmul(int device, const CudaMatmulOptions& options);
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;
  ~CudaMatmul();

  /// The stream's device must be current. m, n and k are not 0. Where something is timed, C is
  /// computed several times (elsewhere, where it is added to), and the host waits. Throws
  /// std::runtime_error where the file cannot be used.
  void run(const CudaProduct& product, cudaStream_t stream);
  /// Computes a product with an activation, or calls `separately`, which computes the same with
  /// products of its own, whichever is faster. Where nothing is timed, it is done separately:
  /// whether fusing gains anything depends on shape and GPU, and llm.c leaves it off for that
  /// reason.
  void run_activated(const CudaProduct& product,
                     const std::function<void()>& separately,
                     cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
