// Fp8Linear: the three products of a linear layer in 8 bits, the "hybrid" recipe of Micikevicius et
// al. 2022 (§3.1): inputs and weights in E4M3, gradients of outputs, whose range is wider, in E5M2.
//
//   y  = x · wᵀ      x and w by rows
//   dx = dy · w      dy by rows, w transposed
//   dw = dyᵀ · x     both transposed
//
// because tensor cores read 8-bit operands along the dimension that is summed over. What backward
// needs is converted from the layer's own tensors, as forward did: nothing of 8 bits is kept.
#pragma once

#include <cstdint>
#include <string>

#include "engine/runtime/exec_context.h"

namespace dstrain {

class Fp8Linear {
 public:
  struct Sizes {
    std::int64_t tokens = 0;   ///< N
    std::int64_t inputs = 0;   ///< I, of this rank as O
    std::int64_t outputs = 0;  ///< O
  };
  /// All three must be multiples of 16.
  static Fp8Linear declare(const std::string& name, const Sizes& sizes, Blueprint& blueprint);

  /// bias_O may be empty.
  void forward(const ExecContext& context,
               ConstTensor x_NI,
               ConstTensor w_OI,
               ConstTensor bias_O,
               Tensor y_NO) const;
  /// dx_NI is overwritten, dw_OI (f32), which may be empty, as `write` says.
  void backward(const ExecContext& context,
                ConstTensor dy_NO,
                ConstTensor x_NI,
                ConstTensor w_OI,
                Tensor dx_NI,
                Tensor dw_OI,
                Write write) const;

 private:
  Sizes sizes_;
  int input_ = -1;  // Blueprint::scaled_tensors
  int weight_ = -1;
  int gradient_ = -1;
  BufferRef rows_;     // scratch: x by rows; then dy by rows; then x transposed
  BufferRef weights_;  // scratch: w by rows, then transposed
  BufferRef columns_;  // scratch: dy transposed
};

}  // namespace dstrain
