// Matrix products through cuBLASLt: descriptors made and an algorithm chosen once per shape, in f32
// accumulation. f32 operands are multiplied in full f32, never in TF32 unless asked.
//
// The algorithm is cuBLASLt's first proposal or, given a file, the fastest of its first few, timed
// when a shape is first met and kept (algorithm_file.h). The timing also decides whether an
// activation is computed within the product or after it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "kernels/core/dtype.h"

namespace dstrain {

/// What becomes of a product before it is C. Of the GELU in its tanh form, which is cuBLASLt's.
enum class ProductActivation : std::uint8_t {
  kNone,
  kGelu,         ///< aux = the product (+ bias), C = gelu(aux)
  kGeluBackward  ///< C = the product · gelu'(aux)
};

/// C[m][n] = or += op(A) · op(B) (+ bias[n]), everything dense and row-major: A is [m][k], or
/// [k][m] where a_transposed; B is [k][n], or [n][k] where b_transposed.
struct CudaProduct {
  std::int64_t m, n, k;
  bool a_transposed;
  bool b_transposed;
  bool adds;
  DType in;   ///< of A and B; of the bias too where it is not of 8 bits, which is bf16 then
  DType out;  ///< of C: f32, or as `in`, or bf16 where that is of 8 bits
  const void* a;
  const void* b;
  const void* bias;  ///< nullptr: none; see can_add_bias
  void* c;
  ProductActivation activation = ProductActivation::kNone;  ///< else not with `adds`
  const void* aux = nullptr;                                ///< [m][n] of `out`; kGelu writes it
  /// Operands of 8 bits: what each is to be multiplied by, one element on the device; B has a dtype
  /// of its own. Only without transposing A and with B transposed: what Hopper's tensor cores read.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  DType b_in = DType::kF32;  ///< unused without scales
};

/// Whether cuBLASLt may add this bias: its kernels read 16 bytes of it at once, and its proposals
/// do not look at where it begins (they are told of A, B and C alone).
bool can_add_bias(const CudaProduct& product);
/// Whether cuBLASLt's rules for an activation's operands allow this one. bf16 alone: how exact its
/// GELU is, it does not say (llm.c's authors saw losses a little worse by it, pull request 653),
/// and GPUs' own tanh has 11 bits, fewer than f16 and f32.
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
  /// A product with an activation, or `separately`, which computes the same with products of its
  /// own: whichever is the faster. Where nothing is timed, separately: whether fusing gains
  /// anything depends on shape and GPU, and llm.c leaves it off for that reason.
  void run_activated(const CudaProduct& product,
                     const std::function<void()>& separately,
                     cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
