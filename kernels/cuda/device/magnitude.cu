// Rows of a weight that have magnitudes of their own. The floor is the bytes of the operands: a
// thread has one column and goes down the rows of its chunk, so that it computes its factor once.
#include <algorithm>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/magnitude.h"
#include "kernels/math/unit_row.h"

namespace dstrain::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr std::int64_t kChunkRows = 64;
constexpr unsigned kWarps = 8;

/// Blocks: columns, then chunks of rows.
template <typename T>
__global__ void forward_kernel(MagnitudeRows rows,
                               RowLengths<T> lengths,
                               ForwardColumns<T> columns,
                               bool adds) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= rows.width) {
    return;
  }
  const float factor = lengths.magnitudes == nullptr ? 1.0F
                                                     : widen(lengths.magnitudes[column]) *
                                                           inverse_length(lengths.squares[column]);
  const float bias = columns.bias == nullptr ? 0.0F : widen(columns.bias[column]);
  const std::int64_t begin = std::int64_t{blockIdx.y} * kChunkRows;
  const std::int64_t end = begin + kChunkRows < rows.rows ? begin + kChunkRows : rows.rows;
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    T* const y = columns.y + row * rows.y_stride + column;
    const float value = widen(columns.x[row * rows.x_stride + column]) * factor + bias;
    *y = narrow<T>(adds ? widen(*y) + value : value);
  }
}

template <typename T>
__global__ void backward_kernel(MagnitudeRows rows,
                                RowLengths<T> lengths,
                                BackwardColumns<T> columns,
                                float* partials) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= rows.width) {
    return;
  }
  const bool scales = lengths.magnitudes != nullptr;
  const float inverse = scales ? inverse_length(lengths.squares[column]) : 1.0F;
  const float factor = scales ? widen(lengths.magnitudes[column]) * inverse : 1.0F;
  const std::int64_t begin = std::int64_t{blockIdx.y} * kChunkRows;
  const std::int64_t end = begin + kChunkRows < rows.rows ? begin + kChunkRows : rows.rows;
  float sum = 0.0F;
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    const float slope = widen(columns.dy[row * rows.y_stride + column]);
    if (scales) {
      sum += slope * widen(columns.x[row * rows.x_stride + column]) * inverse;
    }
    columns.dx[row * rows.dx_stride + column] = narrow<T>(slope * factor);
  }
  if (scales) {
    partials[std::int64_t{blockIdx.y} * rows.width + column] = sum;
  }
}

/// A warp a row.
template <typename T>
__global__ void row_products_kernel(
    const T* a, const float* b, float* sums, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (row >= rows) {
    return;
  }
  float sum = 0.0F;
  for (std::int64_t c = threadIdx.x; c < width; c += 32) {
    sum += widen(a[row * width + c]) * b[row * width + c];
  }
  sum = warp_reduce(sum, Plus{});
  if (threadIdx.x == 0) {
    sums[row] += sum;
  }
}

dim3 grid_of(const MagnitudeRows& rows) {
  return dim3(static_cast<unsigned>((rows.width + kThreads - 1) / kThreads),
              static_cast<unsigned>(magnitude_backward_chunks(rows)));
}

}  // namespace

std::int64_t magnitude_backward_chunks(const MagnitudeRows& rows) {
  return (rows.rows + kChunkRows - 1) / kChunkRows;
}

template <typename T>
void magnitude_forward(const Launch& to,
                       const MagnitudeRows& rows,
                       const RowLengths<T>& lengths,
                       const ForwardColumns<T>& columns,
                       bool adds) {
  if (rows.rows == 0 || rows.width == 0) {
    return;
  }
  launch("magnitude_forward", forward_kernel<T>, grid_of(rows), dim3(kThreads), 0, to.stream, rows,
         lengths, columns, adds);
}

template <typename T>
void magnitude_backward(const Launch& to,
                        const MagnitudeRows& rows,
                        const RowLengths<T>& lengths,
                        const BackwardColumns<T>& columns,
                        float* partials) {
  if (rows.rows == 0 || rows.width == 0) {
    return;
  }
  launch("magnitude_backward", backward_kernel<T>, grid_of(rows), dim3(kThreads), 0, to.stream,
         rows, lengths, columns, partials);
}

template <typename T>
void add_row_products(const Launch& to,
                      const T* a,
                      const float* b,
                      float* sums,
                      std::int64_t rows,
                      std::int64_t width) {
  if (rows == 0) {
    return;
  }
  launch("add_row_products", row_products_kernel<T>,
         dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), dim3(32, kWarps), 0, to.stream,
         a, b, sums, rows, width);
}

#define DSTRAIN_MAGNITUDES_OF(T)                                                              \
  template void magnitude_forward(const Launch&, const MagnitudeRows&, const RowLengths<T>&,  \
                                  const ForwardColumns<T>&, bool);                            \
  template void magnitude_backward(const Launch&, const MagnitudeRows&, const RowLengths<T>&, \
                                   const BackwardColumns<T>&, float*);                        \
  template void add_row_products(const Launch&, const T*, const float*, float*, std::int64_t, \
                                 std::int64_t);
DSTRAIN_MAGNITUDES_OF(float)
DSTRAIN_MAGNITUDES_OF(BF16)
DSTRAIN_MAGNITUDES_OF(F16)
#undef DSTRAIN_MAGNITUDES_OF

}  // namespace dstrain::cuda
