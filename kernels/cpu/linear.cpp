// Linear layers: products by CpuMatmul, bias and its gradient by our own loops over rows.
//
// N tokens, I inputs, O outputs
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {

void CpuOps::linear_forward(
    ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) {
  stream.run([=, this] { matmul_.forward(x_NI, w_OI, bias_O, y_NO); });
}

void CpuOps::linear_backward_input(ConstTensor dy_NO,
                                   ConstTensor w_OI,
                                   Tensor dx_NI,
                                   Stream& stream) {
  stream.run([=, this] { matmul_.backward_input(dy_NO, w_OI, dx_NI); });
}

void CpuOps::linear_backward_weight(
    ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write, Stream& stream) {
  stream.run([=, this] { matmul_.backward_weight(dy_NO, x_NI, dw_OI, write); });
}

// One task per block of rows, which sums into its own row of scratch; the blocks are the same
// whatever the number of threads, and are added in order.
void CpuOps::linear_backward_bias(ConstTensor dy_NO, Tensor dbias_O, Write write, Stream& stream) {
  const auto [tokens, outputs] = as_matrix(dy_NO);
  expect(dbias_O, "dbias", DType::kF32, outputs);
  stream.run([=, this, tokens = tokens, outputs = outputs] {
    constexpr std::int64_t kMostBlocks = 32;
    constexpr std::int64_t kFewestRows = 32;
    const std::int64_t block_rows = std::max(kFewestRows, (tokens + kMostBlocks - 1) / kMostBlocks);
    const std::int64_t blocks = (tokens + block_rows - 1) / block_rows;
    const auto partials = scratch_.lease(blocks * outputs * size_of(DType::kF32));
    with_loops(loops_, dy_NO.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(threads_, blocks, [&](std::int64_t block, int /*worker*/) {
        float* const sums = partials.as<float>() + block * outputs;
        std::fill_n(sums, outputs, 0.0F);
        const std::int64_t first = block * block_rows;
        loops.add_column_sums(pointer<T>(dy_NO) + first * outputs,
                              std::min(block_rows, tokens - first), outputs, sums);
      });
    });
    add_partials(partials.as<float>(), blocks, outputs, outputs, write, pointer<float>(dbias_O));
  });
}

void CpuOps::add_bias(Tensor y_NO, ConstTensor bias_O, Stream& stream) {
  const auto [tokens, outputs] = as_matrix(y_NO);
  expect(bias_O, "bias", y_NO.dtype(), outputs);
  stream.run([=, this, tokens = tokens, outputs = outputs] {
    constexpr std::int64_t kRows = 32;
    with_loops(loops_, y_NO.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          T* const row = pointer<T>(y_NO) + n * outputs;
          loops.add(row, pointer<T>(bias_O), row, outputs);
        }
      });
    });
  });
}

}  // namespace dstrain
