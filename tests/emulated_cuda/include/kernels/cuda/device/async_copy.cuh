// Asynchronous copies for the host's compiler: stands before kernels/cuda/device/async_copy.cuh in
// the include path. See AsyncCopy in emulated_gpu.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/emulated_cuda/emulated_gpu.h"

namespace dstrain {

template <int kBytes>
void copy_async(void* to, const void* from, bool inside) {
  static_assert(kBytes == 4 || kBytes == 16);
  if (reinterpret_cast<std::uintptr_t>(to) % kBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % kBytes != 0) {
    __builtin_trap();
  }
  emulated::ThreadState& thread = emulated::thread();
  thread.copies.push_back({to, inside ? from : nullptr, kBytes, thread.committed});
}

inline void commit_copies() {
  ++emulated::thread().committed;
}

template <int kGroups>
void wait_for_copies() {
  emulated::ThreadState& thread = emulated::thread();
  std::erase_if(thread.copies, [&](const emulated::AsyncCopy& copy) {
    const bool is_due = copy.group < thread.committed - kGroups;
    if (is_due && copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else if (is_due) {
      std::memset(copy.to, 0, copy.bytes);
    }
    return is_due;
  });
}

}  // namespace dstrain
