// Packs of neighbours of which a tensor's last has fewer, or that begin at any element.
#pragma once

#include "kernels/cuda/device/floats.cuh"

namespace dstrain {

/// The first `left` of kWidth neighbours, and zeros. kAligned: they begin where a pack may.
template <bool kAligned, int kWidth>
__device__ void load_first(const float* from, std::int64_t left, float (&to)[kWidth]) {
  if (kAligned && left >= kWidth) {
    load(from, to);
    return;
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    to[k] = k < left ? from[k] : 0.0F;
  }
}
template <bool kAligned, int kWidth>
__device__ void store_first(float* to, std::int64_t left, const float (&from)[kWidth]) {
  if (kAligned && left >= kWidth) {
    store(to, from);
    return;
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (k < left) {
      to[k] = from[k];
    }
  }
}

}  // namespace dstrain
