// CpuOps: every operation of kernels/ops.h on the processor. A method checks dtypes and shapes at
// once and runs its loops in stream order; the file that holds it is named after its subject.
#pragma once

#include "kernels/cpu/grouped_matmul.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/scratch_pool.h"
#include "kernels/ops.h"

namespace dstrain {

struct AttentionOperands;  // kernels/attention.h

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, CpuIsa isa)
      : threads_(threads),
        loops_(loops_for(isa)),
        matmul_(threads, loops_),
        grouped_(threads, loops_) {}

#define DSTRAIN_OPERATION override
#include "kernels/ops_list.inc"
#undef DSTRAIN_OPERATION

 private:
  /// The number of threads for work on a stream. A side stream has one, as it works alongside the
  /// compute stream, whose threads have the cores.
  [[nodiscard]] int threads_on(const Stream& stream) const {
    return stream.is_inline() ? threads_ : 1;
  }
  template <typename T>
  using BlockSum = double (*)(const T* x, std::int64_t n);
  template <typename T>
  void sum_blocks(
      BlockSum<T> block_sum, ConstTensor values, Tensor total, Write write, Stream& stream);
  /// total[c] = or += the sum over blocks of partials[block][c], in block order.
  void add_partials(const float* partials,
                    std::int64_t blocks,
                    std::int64_t stride,
                    std::int64_t width,
                    Write write,
                    float* total);
  /// Computes attention within an operation.
  void attend(const AttentionForward& attention);
  /// Implements attention_cached for few queries; keys and values are those in the cache.
  void attend_one_by_one(const AttentionOperands& in, Tensor out, Tensor logsumexp_HT);
  /// Computes a product within an operation.
  void run(const MatrixProduct& product);
  /// Implements linear_forward for one token.
  void linear_one_token(
      ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream);
  /// y = or += scale · x.
  void scale_elements(int threads, ConstTensor x, float scale, Tensor y, bool adds);
  void zero_bytes(void* data, std::int64_t bytes);

  int threads_;
  VectorLoops loops_;
  CpuMatmul matmul_;
  GroupedMatmul grouped_;
  ScratchPool scratch_;
};

}  // namespace dstrain
