// Norms: one block a row. Passes after the first find the row in the nearest cache, so the floor is
// the bytes of the operands, each once.
#include <algorithm>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/norm.h"

namespace dstrain::cuda {
namespace {

/// Two sums, reduced together.
struct TwoSums {
  float a;
  float b;
};

__device__ TwoSums block_sums(TwoSums sums) {
  return {block_sum(sums.a), block_sum(sums.b)};
}

// Mean, then squared distance from it: one pass over x and x² loses digits where the mean is large
// beside the deviation. A thread reads again only what it wrote itself.
template <int kWidth, typename T>
__global__ void norm_forward_kernel(NormForwardRows<T> norm) {
  const std::int64_t width = norm.width;
  const std::int64_t at = std::int64_t{blockIdx.x} * width;
  const float inverse_width = 1.0F / static_cast<float>(width);
  const unsigned step = blockDim.x * kWidth;
  const T* x = norm.x + at;
  float total = 0.0F;
  if (norm.delta != nullptr) {
    T* const residual = norm.residual + at;
    for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
      float values[kWidth];
      float deltas[kWidth];
      load(x + c, values);
      load(norm.delta + at + c, deltas);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] = widen(narrow<T>(values[k] + deltas[k]));  // what is stored is normalised
        total += values[k];
      }
      store(residual + c, values);
    }
    x = residual;
  } else if (norm.centered) {
    for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
      float values[kWidth];
      load(x + c, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        total += values[k];
      }
    }
  }
  const float mean = norm.centered ? block_sum(total) * inverse_width : 0.0F;
  float squares = 0.0F;
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
    float values[kWidth];
    load(x + c, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float distance = values[k] - mean;
      squares += distance * distance;
    }
  }
  const float variance = block_sum(squares) * inverse_width;
  const float inverse_deviation = 1.0F / sqrtf(variance + norm.epsilon);
  if (threadIdx.x == 0) {
    norm.stats[2 * std::int64_t{blockIdx.x}] = mean;
    norm.stats[2 * std::int64_t{blockIdx.x} + 1] = inverse_deviation;
  }
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
    float values[kWidth];
    float weights[kWidth];
    load(x + c, values);
    load(norm.weight + c, weights);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = (values[k] - mean) * inverse_deviation * (weights[k] + norm.weight_offset);
    }
    if (norm.bias != nullptr) {
      float biases[kWidth];
      load(norm.bias + c, biases);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] += biases[k];
      }
    }
    store(norm.y + at + c, values);
  }
}

// With x̂ = (x - mean) / deviation and g = dy · weight:
// dx = (g - mean(g) - x̂ mean(g x̂)) / deviation; RMSNorm lacks the middle term.
// A block takes every gridDim-th row and sums the gradients of weight and bias over them in shared
// memory, where each thread has its own columns; the blocks' sums are added in order afterwards.
template <int kWidth, typename T>
__global__ void norm_backward_kernel(NormBackwardRows<T> norm, float* partials) {
  const std::int64_t width = norm.width;
  const float inverse_width = 1.0F / static_cast<float>(width);
  const unsigned step = blockDim.x * kWidth;
  float* const dweight = dynamic_shared<float>();
  float* const dbias = dweight + width;
  const float zeros[kWidth] = {};
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
    store(dweight + c, zeros);
    store(dbias + c, zeros);
  }
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const T* const x = norm.x + row * width;
    const T* const dy = norm.dy + row * width;
    T* const dx = norm.dx + row * width;
    const float mean = norm.stats[2 * row];
    const float inverse_deviation = norm.stats[2 * row + 1];
    TwoSums sums{0.0F, 0.0F};
    for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
      float slopes[kWidth];
      float values[kWidth];
      float weights[kWidth];
      float sums_of_weight[kWidth];
      float sums_of_bias[kWidth];
      load(dy + c, slopes);
      load(x + c, values);
      load(norm.weight + c, weights);
      load(dweight + c, sums_of_weight);
      load(dbias + c, sums_of_bias);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float x_hat = (values[k] - mean) * inverse_deviation;
        const float g = slopes[k] * (weights[k] + norm.weight_offset);
        sums.a += g;
        sums.b += g * x_hat;
        sums_of_weight[k] += slopes[k] * x_hat;
        sums_of_bias[k] += slopes[k];
      }
      store(dweight + c, sums_of_weight);
      store(dbias + c, sums_of_bias);
    }
    const TwoSums totals = block_sums(sums);
    const float mean_g = norm.centered ? totals.a * inverse_width : 0.0F;
    const float mean_gx = totals.b * inverse_width;
    for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
      float slopes[kWidth];
      float values[kWidth];
      float weights[kWidth];
      load(dy + c, slopes);
      load(x + c, values);
      load(norm.weight + c, weights);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float x_hat = (values[k] - mean) * inverse_deviation;
        const float g = slopes[k] * (weights[k] + norm.weight_offset);
        values[k] = (g - mean_g - x_hat * mean_gx) * inverse_deviation;
      }
      if (norm.add_to_dx) {
        float earlier[kWidth];
        load(dx + c, earlier);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          values[k] += earlier[k];
        }
      }
      store(dx + c, values);
    }
  }
  float* const out = partials + std::int64_t{blockIdx.x} * 2 * width;
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
    float values[kWidth];
    load(dweight + c, values);
    store(out + c, values);
    if (norm.has_bias) {
      load(dbias + c, values);
      store(out + width + c, values);
    }
  }
}

constexpr unsigned kMostThreads = 512;

}  // namespace

template <typename T>
void norm_forward(const Launch& to, const NormForwardRows<T>& norm) {
  if (norm.rows == 0 || norm.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(norm.rows));
  if (norm.width % kPackWidth == 0 &&
      all_aligned(norm.x, norm.delta, norm.weight, norm.bias, norm.residual, norm.y)) {
    launch("norm_forward", norm_forward_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(norm.width, kPackWidth, kMostThreads)), 0, to.stream, norm);
  } else {
    launch("norm_forward", norm_forward_kernel<1, T>, grid,
           dim3(threads_for_row(norm.width, 1, kMostThreads)), 0, to.stream, norm);
  }
}

std::int64_t norm_backward_blocks(const Launch& to, std::int64_t rows) {
  constexpr std::int64_t kFewestRows = 8;
  constexpr std::int64_t kBlocksPerMultiprocessor = 6;
  return std::clamp<std::int64_t>((rows + kFewestRows - 1) / kFewestRows, 1,
                                  to.multiprocessors * kBlocksPerMultiprocessor);
}

template <typename T>
void norm_backward(const Launch& to, const NormBackwardRows<T>& norm, float* partials) {
  if (norm.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(norm_backward_blocks(to, norm.rows)));
  const std::size_t shared = static_cast<std::size_t>(norm.width) * 2 * sizeof(float);
  if (norm.width % kPackWidth == 0 && all_aligned(norm.dy, norm.x, norm.weight, norm.dx)) {
    launch("norm_backward", norm_backward_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(norm.width, kPackWidth, kMostThreads)), shared, to.stream, norm,
           partials);
  } else {
    launch("norm_backward", norm_backward_kernel<1, T>, grid,
           dim3(threads_for_row(norm.width, 1, kMostThreads)), shared, to.stream, norm, partials);
  }
}

template void norm_forward(const Launch&, const NormForwardRows<float>&);
template void norm_forward(const Launch&, const NormForwardRows<BF16>&);
template void norm_forward(const Launch&, const NormForwardRows<F16>&);
template void norm_backward(const Launch&, const NormBackwardRows<float>&, float*);
template void norm_backward(const Launch&, const NormBackwardRows<BF16>&, float*);
template void norm_backward(const Launch&, const NormBackwardRows<F16>&, float*);

}  // namespace dstrain::cuda
