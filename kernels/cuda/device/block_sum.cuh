// Sums and maxima over a block, the same bits in every thread and on every run.
#pragma once

#include "kernels/cuda/device/language.cuh"

namespace dstrain {

constexpr int kMostWarps = 32;
constexpr unsigned kWholeWarp = 0xffffffffU;

struct Plus {
  template <typename F>
  __device__ F operator()(F a, F b) const {
    return a + b;
  }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Butterfly: both partners combine the same two numbers, so all lanes end with the same.
template <typename F, typename Combine>
__device__ F warp_reduce(F value, Combine combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

/// Every thread of the block calls this; blocks are whole warps. `neutral` leaves others as they
/// are.
template <typename F, typename Combine>
__device__ F block_reduce(F value, F neutral, Combine combine) {
  __shared__ F of_warps[kMostWarps];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned warps = blockDim.x * blockDim.y / 32;
  const F of_warp = warp_reduce(value, combine);
  __syncthreads();  // of_warps may still be read, from the call before
  if (thread % 32 == 0) {
    of_warps[thread / 32] = of_warp;
  }
  __syncthreads();
  return warp_reduce(thread % 32 < warps ? of_warps[thread % 32] : neutral, combine);
}

template <typename F>
__device__ F block_sum(F value) {
  return block_reduce(value, F{0}, Plus{});
}
__device__ inline float block_largest(float value) {
  return block_reduce(value, -3.0e38F, Larger{});
}

}  // namespace dstrain
