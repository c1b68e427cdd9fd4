// Linear layers: products by CpuMatmul, except those of one token, which read each weight once and
// are as fast as memory; bias and its gradient by our own loops over rows.
//
// N tokens, I inputs, O outputs
#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {

void CpuOps::run(const MatrixProduct& product) {
  note_product(product);
  matmul_.run(product);
}

void CpuOps::linear_forward(
    ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) {
  if (x_NI.shape().rank() == 2 && x_NI.dim(0) == 1) {
    linear_one_token(x_NI, w_OI, bias_O, y_NO, stream);
    return;
  }
  stream.run([=, this] { run(forward_product(x_NI, w_OI, bias_O, y_NO)); });
}

// Tasks of a fixed number of outputs, each a sum of its own: the same bits on any number of
// threads.
void CpuOps::linear_one_token(
    ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) {
  const MatrixProduct product = forward_product(x_NI, w_OI, bias_O, y_NO);
  const ProductForm form = form_of(product);
  const std::int64_t outputs = form.n;
  const std::int64_t inputs = form.k;
  const DType dtype = x_NI.dtype();
  stream.run([=, this] {
    note_product(product);
    constexpr std::int64_t kOutputs = 64;
    const auto scratch = scratch_.lease(inputs * size_of(DType::kF32));
    float* const x = scratch.as<float>();
    with_loops(loops_, dtype, [&]<typename T>(const TypedLoops<T>& loops) {
      loops.cast_to_f32(pointer<T>(x_NI), x, inputs);
      const T* const bias = pointer<T>(bias_O);
      parallel_pieces(threads_, outputs, kOutputs, [&](std::int64_t begin, std::int64_t end) {
        std::array<float, kOutputs> sums;
        loops.row_products(x, pointer<T>(w_OI) + begin * inputs,
                           bias == nullptr ? nullptr : bias + begin, inputs, end - begin,
                           sums.data());
        with_loops(loops_, y_NO.dtype(), [&]<typename Y>(const TypedLoops<Y>&) {
          Y* const y = pointer<Y>(y_NO) + begin;
          if constexpr (std::is_same_v<Y, float>) {
            std::copy_n(sums.data(), end - begin, y);
          } else if constexpr (std::is_same_v<Y, BF16>) {
            loops_.f32.cast_to_bf16(sums.data(), y, end - begin);
          } else {
            loops_.f32.cast_to_f16(sums.data(), y, end - begin);
          }
        });
      });
    });
  });
}

void CpuOps::linear_backward_input(ConstTensor dy_NO,
                                   ConstTensor w_OI,
                                   Tensor dx_NI,
                                   Stream& stream) {
  stream.run([=, this] { run(backward_input_product(dy_NO, w_OI, dx_NI)); });
}

// Runs linear_forward and activation_forward as two passes, and so gives their bits.
void CpuOps::linear_activation_forward(ActivationKind kind,
                                       ConstTensor x_NI,
                                       ConstTensor w_OI,
                                       ConstTensor bias_O,
                                       Tensor pre_NO,
                                       Tensor y_NO,
                                       Stream& stream) {
  linear_forward(x_NI, w_OI, bias_O, pre_NO, stream);
  activation_forward(kind, pre_NO, y_NO, stream);
}

void CpuOps::linear_activation_backward(ActivationKind kind,
                                        ConstTensor dy_NO,
                                        ConstTensor w_OI,
                                        ConstTensor pre_NI,
                                        Tensor d_pre_NI,
                                        Stream& stream) {
  linear_backward_input(dy_NO, w_OI, d_pre_NI, stream);
  activation_backward(kind, pre_NI, d_pre_NI, d_pre_NI, stream);
}

void CpuOps::linear_backward_weight(
    ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write, Stream& stream) {
  stream.run([=, this] { run(backward_weight_product(dy_NO, x_NI, dw_OI, write)); });
}

// One task per block of rows, which sums into its own row of scratch; the blocks are the same
// whatever the number of threads, and are added in order.
void CpuOps::linear_backward_bias(ConstTensor dy_NO, Tensor dbias_O, Write write, Stream& stream) {
  const auto [tokens, outputs] = expect_rows_and_bias(dy_NO, dbias_O, DType::kF32);
  stream.run([=, this, tokens = tokens, outputs = outputs] {
    note_moved(dy_NO);
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
  const auto [tokens, outputs] = expect_rows_and_bias(y_NO, bias_O, y_NO.dtype());
  stream.run([=, this, tokens = tokens, outputs = outputs] {
    note_moved(y_NO, y_NO);
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
