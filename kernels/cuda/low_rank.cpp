// What low-rank adapters compute: products by cuBLASLt, which takes columns of a matrix as they
// lie, and adds to them.
//
// N tokens, C columns, R ranks; the factor T is [R, C]
#include <cstddef>
#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/low_rank_operands.h"

namespace dstrain {
namespace {

const void* begin_of(const ConstColumns& columns) {
  return static_cast<const std::byte*>(columns.matrix().data()) +
         columns.first() * size_of(columns.dtype());
}

void* begin_of(const Columns& columns) {
  return static_cast<std::byte*>(columns.matrix().data()) +
         columns.first() * size_of(columns.dtype());
}

}  // namespace

void CudaOps::reduce_to_rank(ConstColumns x_NC,
                             ConstTensor factor,
                             bool transposed,
                             float scale,
                             Tensor h_NR,
                             Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, x_NC, factor, x_NC.dtype(), transposed);
  multiply({.m = sizes.tokens,
            .n = sizes.ranks,
            .k = sizes.columns,
            .a_transposed = false,
            .b_transposed = !transposed,
            .adds = false,
            .in = x_NC.dtype(),
            .out = h_NR.dtype(),
            .a = begin_of(x_NC),
            .b = factor.data(),
            .bias = nullptr,
            .c = h_NR.data(),
            .a_stride = x_NC.stride()},
           stream);
  if (scale != 1.0F) add_scaled(h_NR, scale, h_NR, Write::kOverwrite, stream);
}

void CudaOps::add_from_rank(
    ConstTensor h_NR, ConstTensor factor, bool transposed, Columns y_NC, Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, y_NC, factor, y_NC.dtype(), transposed);
  multiply({.m = sizes.tokens,
            .n = sizes.columns,
            .k = sizes.ranks,
            .a_transposed = false,
            .b_transposed = transposed,
            .adds = true,
            .in = h_NR.dtype(),
            .out = y_NC.dtype(),
            .a = h_NR.data(),
            .b = factor.data(),
            .bias = nullptr,
            .c = begin_of(y_NC),
            .c_stride = y_NC.stride()},
           stream);
}

void CudaOps::rank_gradient(ConstTensor h_NR,
                            ConstColumns x_NC,
                            Tensor d_factor,
                            bool transposed,
                            Write write,
                            Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, x_NC, d_factor, DType::kF32, transposed);
  CudaProduct product{.m = sizes.ranks,
                      .n = sizes.columns,
                      .k = sizes.tokens,
                      .a_transposed = true,
                      .b_transposed = false,
                      .adds = write == Write::kAdd,
                      .in = x_NC.dtype(),
                      .out = DType::kF32,
                      .a = h_NR.data(),
                      .b = begin_of(x_NC),
                      .bias = nullptr,
                      .c = d_factor.data(),
                      .b_stride = x_NC.stride()};
  if (transposed) {
    std::swap(product.m, product.n);
    std::swap(product.a, product.b);
    std::swap(product.a_stride, product.b_stride);
  }
  multiply(product, stream);
}

}  // namespace dstrain
