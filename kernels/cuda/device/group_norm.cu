// RMS norms of groups of columns. The floor is the bytes of the operands, each once.
#include <algorithm>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/group_norm.h"

namespace dstrain::cuda {
namespace {

constexpr unsigned kWarps = 8;
constexpr unsigned kThreads = 256;

/// A warp a group. Products with dy and the weight, or squares without.
template <int kWidth, bool kProducts, typename T>
__global__ void group_sums_kernel(GroupNormRows<T> norm, float* sums) {
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (at >= norm.rows * norm.groups) {
    return;
  }
  const std::int64_t row = at / norm.groups;
  const std::int64_t first = (at - row * norm.groups) * norm.width;
  const T* const x = norm.x + row * norm.x_stride + first;
  const T* const dy = kProducts ? norm.dy + row * norm.dy_stride + first : nullptr;
  float sum = 0.0F;
  for (std::int64_t c = threadIdx.x * kWidth; c < norm.width; c += 32 * kWidth) {
    float values[kWidth];
    load(x + c, values);
    if constexpr (kProducts) {
      float slopes[kWidth];
      float weights[kWidth];
      load(dy + c, slopes);
      load(norm.weight + c, weights);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        sum += slopes[k] * (weights[k] + norm.weight_offset) * values[k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        sum += values[k] * values[k];
      }
    }
  }
  sum = warp_reduce(sum, Plus{});
  if (threadIdx.x == 0) {
    sums[at] = sum;
  }
}

template <typename T>
__device__ float inverse_root(const GroupNormRows<T>& norm, std::int64_t at) {
  return 1.0F / sqrtf(norm.squares[at] * norm.inverse_norm_width + norm.epsilon);
}

/// threadIdx.y names the group, threadIdx.x the columns of it.
template <int kWidth, typename T>
__global__ void group_norm_forward_kernel(GroupNormRows<T> norm) {
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (at >= norm.rows * norm.groups) {
    return;
  }
  const std::int64_t row = at / norm.groups;
  const std::int64_t first = (at - row * norm.groups) * norm.width;
  const T* const x = norm.x + row * norm.x_stride + first;
  T* const y = norm.out + row * norm.out_stride + first;
  const float inverse = inverse_root(norm, at);
  for (std::int64_t c = threadIdx.x * kWidth; c < norm.width; c += blockDim.x * kWidth) {
    float values[kWidth];
    float weights[kWidth];
    load(x + c, values);
    load(norm.weight + c, weights);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = values[k] * inverse * (weights[k] + norm.weight_offset);
    }
    store(y + c, values);
  }
}

// With r = 1/sqrt(squares / n + epsilon), n the norm's width and products = Σ dy · weight · x:
// dx = (dy · weight - x · r² · products / n) · r and dweight = Σ dy · x · r.
// Each threadIdx.y of the grid takes its share of the groups and sums the weight's gradient over
// them in shared memory, where each thread has its own columns; the block then adds those sums in
// order, and the blocks' are added afterwards.
template <int kWidth, typename T>
__global__ void group_norm_backward_kernel(GroupNormRows<T> norm, float* partials) {
  const std::int64_t width = norm.width;
  const unsigned step = blockDim.x * kWidth;
  const std::int64_t lane = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  float* const dweight = dynamic_shared<float>() + threadIdx.y * width;
  const float zeros[kWidth] = {};
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
    store(dweight + c, zeros);
  }
  const std::int64_t lanes = std::int64_t{gridDim.x} * blockDim.y;
  for (std::int64_t at = lane; at < norm.rows * norm.groups; at += lanes) {
    const std::int64_t row = at / norm.groups;
    const std::int64_t first = (at - row * norm.groups) * width;
    const T* const x = norm.x + row * norm.x_stride + first;
    const T* const dy = norm.dy + row * norm.dy_stride + first;
    T* const dx = norm.out + row * norm.out_stride + first;
    const float inverse = inverse_root(norm, at);
    const float along = norm.products[at] * inverse * norm.inverse_norm_width;
    for (std::int64_t c = threadIdx.x * kWidth; c < width; c += step) {
      float slopes[kWidth];
      float values[kWidth];
      float weights[kWidth];
      float sums[kWidth];
      load(dy + c, slopes);
      load(x + c, values);
      load(norm.weight + c, weights);
      load(dweight + c, sums);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float x_hat = values[k] * inverse;
        sums[k] += slopes[k] * x_hat;
        const float g = slopes[k] * (weights[k] + norm.weight_offset);
        values[k] = (g - x_hat * along) * inverse;
      }
      store(dweight + c, sums);
      store(dx + c, values);
    }
  }
  __syncthreads();
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (std::int64_t c = thread; c < width; c += blockDim.x * blockDim.y) {
    float sum = 0.0F;
    for (unsigned of = 0; of < blockDim.y; ++of) {
      sum += dynamic_shared<float>()[of * width + c];
    }
    partials[blockIdx.x * width + c] = sum;
  }
}

/// Whether rows and groups begin on whole packs.
template <typename T>
bool in_packs(const GroupNormRows<T>& norm) {
  return norm.width % kPackWidth == 0 && norm.x_stride % kPackWidth == 0 &&
         norm.dy_stride % kPackWidth == 0 && norm.out_stride % kPackWidth == 0 &&
         all_aligned(norm.x, norm.dy, norm.weight, norm.out);
}

/// Threads over the columns of a group, and groups side by side.
dim3 block_for(std::int64_t width, int pack) {
  const unsigned across = threads_for_row(width, pack, kThreads);
  return dim3(across, kThreads / across);
}

template <typename T>
dim3 blocks_for(const GroupNormRows<T>& norm, unsigned groups_of_block) {
  const std::int64_t groups = norm.rows * norm.groups;
  return dim3(static_cast<unsigned>((groups + groups_of_block - 1) / groups_of_block));
}

template <bool kProducts, typename T>
void group_sums(const Launch& to, const char* name, const GroupNormRows<T>& norm, float* sums) {
  if (norm.rows == 0 || norm.groups == 0) {
    return;
  }
  const dim3 block(32, kWarps);
  const dim3 grid = blocks_for(norm, kWarps);
  if (in_packs(norm)) {
    launch(name, group_sums_kernel<kPackWidth, kProducts, T>, grid, block, 0, to.stream, norm,
           sums);
  } else {
    launch(name, group_sums_kernel<1, kProducts, T>, grid, block, 0, to.stream, norm, sums);
  }
}

}  // namespace

template <typename T>
void group_squares(const Launch& to, const GroupNormRows<T>& norm, float* squares) {
  group_sums<false>(to, "group_squares", norm, squares);
}

template <typename T>
void group_products(const Launch& to, const GroupNormRows<T>& norm, float* products) {
  group_sums<true>(to, "group_products", norm, products);
}

template <typename T>
void group_norm_forward(const Launch& to, const GroupNormRows<T>& norm) {
  if (norm.rows == 0 || norm.groups == 0) {
    return;
  }
  const bool packs = in_packs(norm);
  const dim3 block = block_for(norm.width, packs ? kPackWidth : 1);
  const dim3 grid = blocks_for(norm, block.y);
  if (packs) {
    launch("group_norm_forward", group_norm_forward_kernel<kPackWidth, T>, grid, block, 0,
           to.stream, norm);
  } else {
    launch("group_norm_forward", group_norm_forward_kernel<1, T>, grid, block, 0, to.stream, norm);
  }
}

template <typename T>
std::int64_t group_norm_backward_blocks(const Launch& to, const GroupNormRows<T>& norm) {
  constexpr std::int64_t kFewestGroups = 8;
  constexpr std::int64_t kBlocksPerMultiprocessor = 4;
  const unsigned lanes = block_for(norm.width, in_packs(norm) ? kPackWidth : 1).y;
  const std::int64_t groups = norm.rows * norm.groups;
  return std::clamp<std::int64_t>((groups + kFewestGroups * lanes - 1) / (kFewestGroups * lanes), 1,
                                  to.multiprocessors * kBlocksPerMultiprocessor);
}

template <typename T>
void group_norm_backward(const Launch& to, const GroupNormRows<T>& norm, float* partials) {
  const dim3 grid(static_cast<unsigned>(group_norm_backward_blocks(to, norm)));
  const bool packs = in_packs(norm);
  const dim3 block = block_for(norm.width, packs ? kPackWidth : 1);
  const std::size_t shared = static_cast<std::size_t>(norm.width) * block.y * sizeof(float);
  if (packs) {
    launch("group_norm_backward", group_norm_backward_kernel<kPackWidth, T>, grid, block, shared,
           to.stream, norm, partials);
  } else {
    launch("group_norm_backward", group_norm_backward_kernel<1, T>, grid, block, shared, to.stream,
           norm, partials);
  }
}

#define DSTRAIN_GROUP_NORM(T)                                                               \
  template void group_squares(const Launch&, const GroupNormRows<T>&, float*);              \
  template void group_products(const Launch&, const GroupNormRows<T>&, float*);             \
  template void group_norm_forward(const Launch&, const GroupNormRows<T>&);                 \
  template std::int64_t group_norm_backward_blocks(const Launch&, const GroupNormRows<T>&); \
  template void group_norm_backward(const Launch&, const GroupNormRows<T>&, float*)
DSTRAIN_GROUP_NORM(float);
DSTRAIN_GROUP_NORM(BF16);
DSTRAIN_GROUP_NORM(F16);
#undef DSTRAIN_GROUP_NORM

}  // namespace dstrain::cuda
