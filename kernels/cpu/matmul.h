// The matrix products of linear layers on the CPU, by libraries whose kernels are chosen at run
// time for this processor.
#pragma once

#include <memory>

#include "kernels/cpu/vector/loops.h"
#include "kernels/matrix_product.h"

namespace dstrain {

class CpuMatmul {
 public:
  /// `loops` convert where the libraries have no kernel for a dtype.
  CpuMatmul(int threads, const VectorLoops& loops);
  CpuMatmul(const CpuMatmul&) = delete;
  CpuMatmul& operator=(const CpuMatmul&) = delete;
  ~CpuMatmul();

  void run(const MatrixProduct& wanted);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
