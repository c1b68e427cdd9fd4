// CUDA C++ as the kernels here use it, and launch(). Everything beyond the language that a kernel
// needs of the device comes through this file, tensor_core.cuh and async_copy.cuh: the emulation of
// a GPU on the processor (tests/emulated_cuda) has files of the same names and compiles the same
// kernels.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"

namespace dstrain {

/// The block's dynamic shared memory, `shared_bytes` of launch().
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

/// 2ˣ by the hardware's instruction alone: results below 2⁻¹²⁶ become 0, whereas exp2f scales
/// before and after, which takes three more instructions.
__device__ inline float exp2_to_zero(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// Enqueues a kernel; `name` is what an error calls it. More than 48 KiB of shared memory has to be
/// asked for, kernel by kernel. Memory that a kernel declares itself (__shared__) counts too, so
/// that the launch asks from a little less on.
template <typename... Parameters, typename... Arguments>
void launch(const char* name,
            void (*kernel)(Parameters...),
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            cudaStream_t stream,
            const Arguments&... arguments) {
  constexpr std::size_t kWithoutAsking = std::size_t{32} << 10;
  if (shared_bytes > kWithoutAsking) {
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               name);
  }
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  cuda_check(cudaGetLastError(), name);
}

}  // namespace dstrain
