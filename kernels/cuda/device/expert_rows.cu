// Rows of tokens in the order of the experts that they chose: a block a row. Floor: the bytes of
// the rows.
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/expert_rows.h"

namespace dstrain::cuda {
namespace {

constexpr unsigned kMostThreads = 256;

template <int kWidth, typename T>
__global__ void gather_kernel(GatherRows<T> gather) {
  const std::int64_t m = blockIdx.x;
  const std::int32_t slot = gather.slots[m];
  const float weight = gather.weights == nullptr ? 1.0F : gather.weights[slot];
  const T* const x = gather.x + slot / gather.per_token * gather.width;
  for (std::int64_t c = threadIdx.x * kWidth; c < gather.width; c += blockDim.x * kWidth) {
    float values[kWidth];
    load(x + c, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] *= weight;
    }
    store(gather.y + m * gather.width + c, values);
  }
}

template <int kWidth, typename T>
__global__ void sum_kernel(SumRows<T> sum) {
  const std::int64_t n = blockIdx.x;
  T* const x = sum.x + n * sum.width;
  for (std::int64_t c = threadIdx.x * kWidth; c < sum.width; c += blockDim.x * kWidth) {
    float sums[kWidth] = {};
    if (sum.adds) {
      load(x + c, sums);
    }
    for (std::int64_t slot = n * sum.per_token; slot < (n + 1) * sum.per_token; ++slot) {
      const std::int64_t place = sum.places[slot];
      if (place >= 0) {
        const float weight = sum.weights == nullptr ? 1.0F : sum.weights[slot];
        float values[kWidth];
        load(sum.y + place * sum.width + c, values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sums[k] += weight * values[k];
        }
      }
    }
    store(x + c, sums);
  }
}

template <int kWidth, typename T>
__global__ void weighted_rows_kernel(WeightedRows<T> back) {
  const std::int64_t m = blockIdx.x;
  const std::int32_t slot = back.slots[m];
  const float weight = back.weights[slot];
  const T* const row = back.row + m * back.width;
  T* const d_row = back.d_row + m * back.width;
  float product = 0.0F;
  for (std::int64_t c = threadIdx.x * kWidth; c < back.width; c += blockDim.x * kWidth) {
    float d[kWidth];
    float values[kWidth];
    load(d_row + c, d);
    load(row + c, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      product += d[k] * values[k];
      d[k] *= weight;
    }
    store(d_row + c, d);
  }
  if (back.outputs > 0) {
    const T* const dy = back.dy + m * back.outputs;
    const T* const bias = back.bias + back.chosen[slot] * back.outputs;
    for (std::int64_t c = threadIdx.x; c < back.outputs; c += blockDim.x) {
      product += widen(dy[c]) * widen(bias[c]);
    }
  }
  product = block_sum(product);
  if (threadIdx.x == 0) {
    back.d_weights[slot] = product;
  }
}

}  // namespace

template <typename T>
void gather_rows(const Launch& to, const GatherRows<T>& gather) {
  if (gather.rows == 0 || gather.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(gather.rows));
  if (gather.width % kPackWidth == 0 && all_aligned(gather.x, gather.y)) {
    launch("gather_rows", gather_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(gather.width, kPackWidth, kMostThreads)), 0, to.stream, gather);
  } else {
    launch("gather_rows", gather_kernel<1, T>, grid,
           dim3(threads_for_row(gather.width, 1, kMostThreads)), 0, to.stream, gather);
  }
}

template <typename T>
void sum_rows(const Launch& to, const SumRows<T>& sum) {
  if (sum.tokens == 0 || sum.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(sum.tokens));
  if (sum.width % kPackWidth == 0 && all_aligned(sum.x, sum.y)) {
    launch("sum_rows", sum_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(sum.width, kPackWidth, kMostThreads)), 0, to.stream, sum);
  } else {
    launch("sum_rows", sum_kernel<1, T>, grid, dim3(threads_for_row(sum.width, 1, kMostThreads)), 0,
           to.stream, sum);
  }
}

template <typename T>
void weighted_rows_backward(const Launch& to, const WeightedRows<T>& back) {
  if (back.rows == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(back.rows));
  if (back.width % kPackWidth == 0 && all_aligned(back.row, back.d_row)) {
    launch("weighted_rows_backward", weighted_rows_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(back.width + 1, kPackWidth, kMostThreads)), 0, to.stream, back);
  } else {
    launch("weighted_rows_backward", weighted_rows_kernel<1, T>, grid,
           dim3(threads_for_row(back.width + 1, 1, kMostThreads)), 0, to.stream, back);
  }
}

template void gather_rows(const Launch&, const GatherRows<float>&);
template void gather_rows(const Launch&, const GatherRows<BF16>&);
template void gather_rows(const Launch&, const GatherRows<F16>&);
template void sum_rows(const Launch&, const SumRows<float>&);
template void sum_rows(const Launch&, const SumRows<BF16>&);
template void sum_rows(const Launch&, const SumRows<F16>&);
template void weighted_rows_backward(const Launch&, const WeightedRows<float>&);
template void weighted_rows_backward(const Launch&, const WeightedRows<BF16>&);
template void weighted_rows_backward(const Launch&, const WeightedRows<F16>&);

}  // namespace dstrain::cuda
