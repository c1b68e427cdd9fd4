// Copies from global to shared memory that run while the thread continues (cp.async; Ampere and
// later). A thread begins some, commits them as a group, and waits for groups; others see what it
// copied after that and a barrier.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/language.cuh"

namespace dstrain {

/// kBytes: 4 or 16, to which both addresses are aligned. Zeros where not `inside`; then `from` is
/// not read, but must be an address of global memory.
template <int kBytes>
__device__ void copy_async(void* to, const void* from, bool inside) {
  static_assert(kBytes == 4 || kBytes == 16);
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  }
}

__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all groups but the newest `kGroups` have arrived.
template <int kGroups>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace dstrain
