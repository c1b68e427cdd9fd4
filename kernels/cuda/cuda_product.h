// CudaProduct: one matrix product on the device, with all of its operands.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace dstrain {

/// What becomes of a product before it is C. The GELU is that of cuBLASLt, in its tanh form.
enum class ProductActivation : std::uint8_t {
  kNone,
  kGelu,         ///< aux = the product (+ bias), C = gelu(aux)
  kGeluBackward  ///< C = the product · gelu'(aux)
};

/// C[m][n] = or += op(A) · op(B) (+ bias[n]), everything row-major, and dense where no stride says
/// else: A is [m][k], or [k][m] where a_transposed; B is [k][n], or [n][k] where b_transposed.
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
  /// For operands of 8 bits: the factor of each, one element on the device; B has a dtype of its
  /// own. Only without transposing A and with B transposed, which is what Hopper's tensor cores
  /// read.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  DType b_in = DType::kF32;  ///< unused without scales
  /// The rows are those of an expert, of which there are others in every step: its algorithm is the
  /// first proposal, as there would always be new shapes to time.
  bool is_routed = false;
  /// Elements from one row to the next, as it is stored; 0: dense.
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;
};

}  // namespace dstrain
