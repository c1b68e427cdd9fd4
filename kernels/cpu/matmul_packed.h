// Products by our own kernels (vector/matmul.cpp), where no library's are better: of f32 before
// AVX-512, of bf16 where there is no instruction for it, and of f16 everywhere.
//
//   A, 8 MiB at a time, is packed by all threads, and stays in the last cache
//   each thread takes 128 columns of C:
//     for each 256 terms: packs B's (128 KiB, in its second cache) and multiplies all rows by them
//
// Few rows, as of generation, are packed instead of the columns that they are multiplied by, which
// are read once, as they lie.
//
// Packing turns 16-bit elements into f32. Sums are f32 and rounded once. An element is the sum, in
// order, of the sums of chunks of its terms: on any number of threads, and beside whatever other
// rows and columns, the same bits.
#pragma once

#include <vector>

#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/vector/loops.h"

namespace dstrain {

class PackedMatmul {
 public:
  PackedMatmul(int threads, const VectorLoops& loops);

  void run(const DenseProduct<float>& product);
  void run(const DenseProduct<BF16>& product);
  void run(const DenseProduct<F16>& product);

 private:
  struct Worker {
    GrowingBuffer columns;  ///< of B, packed; or widened, where rows are few
    GrowingBuffer sums;     ///< f32, where C is not, or rows are few
  };
  struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
  };
  template <typename T>
  struct Plan;

  template <typename T>
  void run_any(const DenseProduct<T>& product, const TypedLoops<T>& loops);
  template <typename T>
  void run_few_rows(const DenseProduct<T>& product, const TypedLoops<T>& loops);
  template <typename T>
  void run_blocks(const DenseProduct<T>& product, const TypedLoops<T>& loops);
  template <typename T>
  void pack(const Plan<T>& plan, const TypedLoops<T>& loops);
  template <typename T>
  void multiply(const Plan<T>& plan, const TypedLoops<T>& loops);
  /// Rows of what is packed, by columns of B.
  template <typename T>
  void multiply(const Plan<T>& plan,
                const TypedLoops<T>& loops,
                Range rows,
                Range columns,
                Worker& worker) const;

  int threads_;
  VectorLoops loops_;
  GrowingBuffer rows_;  ///< a block of A, packed
  GrowingBuffer sums_;  ///< between slabs of terms, where C is not f32
  GrowingBuffer bias_;  ///< in f32
  std::vector<Worker> workers_;
};

}  // namespace dstrain
