// Products of 16-bit matrices by f32 ones, where there is no kernel for the matrices as they are:
// for f16 everywhere (oneDNN 2.6 has none for CPUs), for bf16 before AVX-512.
//
//   C[a block] = or += Σ over chunks of k: f32(A[the rows, a chunk]) · f32(B[the chunk, …])
//
// Each element is widened about once for every thousand terms that it is used in. Sums are f32 and
// rounded once. The scratch memory is three blocks of at most 4 MiB, whatever the matrices are.
#pragma once

#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/vector/loops.h"

namespace dstrain {

class WidenedMatmul {
 public:
  /// `loops` convert.
  WidenedMatmul(int threads, const VectorLoops& loops) : threads_(threads), loops_(loops) {}

  void run(const NarrowProduct<BF16>& product);
  void run(const NarrowProduct<F16>& product);

 private:
  template <typename T>
  void run_blocks(const NarrowProduct<T>& product, const TypedLoops<T>& loops);

  int threads_;
  VectorLoops loops_;
  GrowingBuffer scratch_;
};

}  // namespace dstrain
