// f32 products by oneDNN's sgemm, where it has AVX-512. It takes a transposed B, as every forward
// has, at a tenth of memory's rate, however few rows are multiplied by it; so that is transposed
// here, some columns of C at a time. Each element has the same bits either way.
#pragma once

#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/vector/loops.h"

namespace dstrain {

class SgemmMatmul {
 public:
  /// With fewer rows, sgemm reads a transposed B without copying it.
  static constexpr std::int64_t kFewestTransposedRows = 16;

  SgemmMatmul(int threads, const VectorLoops& loops);

  void run(const DenseProduct<float>& product);
  /// Whether what it computes is the same on any number of threads. Without AVX-512, its last
  /// digits depend on how oneDNN cuts C over its threads.
  static bool suits_any_threads();

 private:
  void run_transposed(const DenseProduct<float>& product, bool adds);

  int threads_;
  VectorLoops loops_;
  GrowingBuffer transposed_;  ///< columns of B
};

}  // namespace dstrain
