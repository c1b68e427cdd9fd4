// CUDA C++ for the host's compiler: stands before kernels/cuda/device/language.cuh in the include
// path, so that the kernels' own source is compiled for the processor. See emulated_gpu.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_check.h"
#include "tests/emulated_cuda/emulated_gpu.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static  // blocks run one after another
#define __launch_bounds__(...)

// Every kernel sees those of its own thread.
#define threadIdx (::dstrain::emulated::thread().index)
#define blockIdx (::dstrain::emulated::block().index)
#define blockDim (::dstrain::emulated::block().block_dim)
#define gridDim (::dstrain::emulated::block().grid_dim)

inline void __syncthreads() {
  dstrain::emulated::synchronize_block();
}
inline void __syncwarp() {
  dstrain::emulated::synchronize_warp();
}
inline void __threadfence_system() {}

template <typename F>
F __shfl_xor_sync(unsigned /*mask*/, F value, int lanes) {
  static_assert(sizeof(F) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(F));
  const auto& of_warp = dstrain::emulated::exchange(bits);
  std::memcpy(&value, of_warp[static_cast<std::size_t>(dstrain::emulated::lane() ^ lanes)].data(),
              sizeof(F));
  return value;
}

inline int atomicCAS(int* at, int compare, int value) {
  const int old = *at;
  if (old == compare) {
    *at = value;
  }
  return old;
}

inline std::uint32_t atomicMax(std::uint32_t* at, std::uint32_t value) {
  const std::uint32_t old = *at;
  *at = std::max(old, value);
  return old;
}

namespace dstrain {

inline float exp2_to_zero(float x) {
  const float power = std::exp2(x);
  return power < std::numeric_limits<float>::min() ? 0.0F : power;
}

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(emulated::shared_memory());
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name,
            void (*kernel)(Parameters...),
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            cudaStream_t stream,
            const Arguments&... arguments) {
  const int device = emulated::stream_of(stream).device();
  (emulated::check_argument(name, arguments, device), ...);
  emulated::launch(stream, name, grid, block, shared_bytes,
                   [kernel, arguments...] { kernel(arguments...); });
}

}  // namespace dstrain
