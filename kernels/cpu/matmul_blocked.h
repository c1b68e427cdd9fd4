// bf16 products on processors with tile registers (AMX), cut so that each call of oneDNN works in
// the second-level cache:
//
//   C[a block of rows, all or a block of n] (+)= A[the rows, a chunk of k] · B[a chunk of k, …]
//
// B is packed once, by all threads; then each thread takes blocks of rows, and makes A's chunks
// dense, or transposes them, as it comes to them. A B that would fill the caches (a vocabulary's)
// goes slab by slab. The order in which an element's terms are added does not depend on the number
// of threads, but for the cut of the rows inside oneDNN.
#pragma once

#include <vector>

#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"

namespace dstrain {

class BlockedMatmul {
 public:
  explicit BlockedMatmul(int threads);

  /// Returns false, having done nothing, for shapes and processors that it does not suit.
  [[nodiscard]] bool run(const Bf16Product& product);

 private:
  struct Worker {
    GrowingBuffer packed_b;  ///< where a thread packs for itself
    GrowingBuffer dense_a;   ///< the rows of a block, chunk after chunk
    GrowingBuffer sums;      ///< f32, of a block of rows and columns
  };
  /// The number of elements from one stored row to the next.
  struct Strides {
    std::int64_t a, b, c;
  };
  struct Plan;

  bool run_slabs_of_columns(const Bf16Product& product, const Strides& strides);
  bool run_slabs_of_terms(const Bf16Product& product, const Strides& strides);
  bool run_slab(const Bf16Product& product, const Strides& strides);
  bool prepare(Plan& plan);
  void pack(const Plan& plan, std::int64_t task) const;
  static void make_dense(
      const Plan& plan, std::int64_t row, std::int64_t rows, std::int64_t chunk, BF16* out);
  void multiply(const Plan& plan, std::int64_t block, int worker) const;

  int threads_;
  bool has_tiles_;
  DnnlMatmuls calls_;
  GrowingBuffer packed_b_;
  GrowingBuffer slab_sums_;  ///< f32, all of C, between slabs of terms
  std::vector<Worker> workers_;
};

}  // namespace dstrain
