// The matrix products of linear layers on the CPU, by libraries whose kernels are chosen at run
// time for this processor. Shapes and meaning: Ops::linear_* in kernels/ops.h.
#pragma once

#include <memory>

#include "kernels/core/tensor.h"
#include "kernels/cpu/vector/loops.h"
#include "kernels/ops.h"

namespace dstrain {

class CpuMatmul {
 public:
  /// `loops` convert where the libraries have no kernel for a dtype.
  CpuMatmul(int threads, const VectorLoops& loops);
  CpuMatmul(const CpuMatmul&) = delete;
  CpuMatmul& operator=(const CpuMatmul&) = delete;
  ~CpuMatmul();

  void forward(ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO);
  void backward_input(ConstTensor dy_NO, ConstTensor w_OI, Tensor dx_NI);
  /// c_MN = or += a_MK · b_NKᵀ + bias_N, as scaled_product, of operands in bf16.
  void product(ConstTensor a_MK, ConstTensor b_NK, ConstTensor bias_N, Tensor c_MN, Write write);
  void backward_weight(ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
