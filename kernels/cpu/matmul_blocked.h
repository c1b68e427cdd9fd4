// bf16 products on processors with tile registers (AMX), cut so that each call of oneDNN works in
// the second-level cache:
//
//   C[a block of rows, all or a block of n] (+)= A[the rows, a chunk of k] · B[a chunk of k, …]
//
// B is packed once, by all threads; then each thread takes blocks of rows, and makes A's chunks
// dense, or transposes them, as it comes to them. The sums of an element are added in the order
// of k whatever the number of threads.
#pragma once

#include <vector>

#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"

namespace dstrain {

class BlockedMatmul {
 public:
  explicit BlockedMatmul(int threads);

  /// False, with nothing done, for the shapes and processors that this way is not for.
  [[nodiscard]] bool run(const Bf16Product& product);

 private:
  struct Worker {
    GrowingBuffer dense_a;  ///< the rows of a block, chunk after chunk
    GrowingBuffer sums;     ///< f32, of a block of rows and columns
  };
  struct Plan;

  bool plan(const Bf16Product& product, Plan& plan);
  void pack(const Bf16Product& product, const Plan& plan, std::int64_t task) const;
  void multiply(const Bf16Product& product, const Plan& plan, std::int64_t block, int worker) const;

  int threads_;
  bool has_tiles_;
  DnnlMatmuls calls_;
  GrowingBuffer packed_b_;
  std::vector<Worker> workers_;
};

}  // namespace dstrain
