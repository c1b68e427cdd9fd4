// A head whose rows count with length one: an element a thread, and a block a row.
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/unit_rows.h"
#include "kernels/math/unit_row.h"

namespace dstrain::cuda {
namespace {

template <typename T>
struct DivideColumns {
  T* x;
  const float* squares;
  std::int64_t columns;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float values[kWidth];
    load(x + i, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] *= inverse_length(squares[(i + k) % columns]);
    }
    store(x + i, values);
  }
};

template <typename T>
__global__ void project_rows_kernel(const T* w,
                                    const float* squares,
                                    float* dw,
                                    std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  const float inverse = inverse_length(squares[row]);
  const T* const w_row = w + row * width;
  float* const dw_row = dw + row * width;
  float total = 0.0F;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    total += widen(w_row[c]) * inverse * dw_row[c];
  }
  const float along = block_sum(total) * inverse;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    dw_row[c] -= widen(w_row[c]) * along;
  }
}

}  // namespace

template <typename T>
void divide_columns(
    const Launch& to, T* x, const float* squares, std::int64_t tokens, std::int64_t columns) {
  launch_elementwise("divide_columns", to, tokens * columns, all_aligned(x),
                     DivideColumns<T>{x, squares, columns});
}

template <typename T>
void project_rows(const Launch& to,
                  const T* w,
                  const float* squares,
                  float* dw,
                  std::int64_t rows,
                  std::int64_t width) {
  if (rows == 0 || width == 0) {
    return;
  }
  constexpr unsigned kMostThreads = 512;
  launch("project_rows", project_rows_kernel<T>, dim3(static_cast<unsigned>(rows)),
         dim3(threads_for_row(width, 1, kMostThreads)), 0, to.stream, w, squares, dw, width);
}

template void divide_columns(const Launch&, float*, const float*, std::int64_t, std::int64_t);
template void divide_columns(const Launch&, BF16*, const float*, std::int64_t, std::int64_t);
template void divide_columns(const Launch&, F16*, const float*, std::int64_t, std::int64_t);
template void project_rows(
    const Launch&, const float*, const float*, float*, std::int64_t, std::int64_t);
template void project_rows(
    const Launch&, const BF16*, const float*, float*, std::int64_t, std::int64_t);
template void project_rows(
    const Launch&, const F16*, const float*, float*, std::int64_t, std::int64_t);

}  // namespace dstrain::cuda
