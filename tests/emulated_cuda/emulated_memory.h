// Memory of the emulated GPUs. Allocations are filled with NaN and have guards around them, which
// are checked when they are freed. Where the processor has memory protection keys, only work on a
// stream can touch what a GPU holds: the host's own reads and writes of it end the process, as on a
// machine with GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace dstrain::emulated {

constexpr std::size_t kMemoryOfGpu = std::size_t{1} << 30;

struct Memory {
  static constexpr int kPinned = -1;
  int device = kPinned;  ///< or the host's, pinned, which every GPU may touch
};

/// Returns nullptr if the GPU does not have that much free memory.
void* allocate(std::size_t bytes, Memory where);
void release(void* data);
/// The memory that `address` lies in; none if a GPU must not touch it.
std::optional<Memory> find_memory(const void* address);
std::size_t free_bytes(int device);

/// Bytes that GPUs have copied so far to memory of the host that is not pinned, which is slow.
std::int64_t bytes_to_pageable();
void count_bytes_to_pageable(std::size_t bytes);

/// While it exists, this thread counts as a GPU's.
class DeviceAccess {
 public:
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  ~DeviceAccess();
};

/// Ends the process with an error if `address`, which `what` is given, does not belong to this GPU,
/// or to any if `device` is kPinned.
void check_on_device(const char* what, const void* address, int device);
/// Checks everything in an argument of a kernel that looks like a pointer in the same way. Takes
/// the argument as a copy whose padding is zero.
void check_argument(const char* kernel, const void* argument, std::size_t bytes, int device);
template <typename Argument>
void check_argument(const char* kernel, Argument argument, int device) {
  __builtin_clear_padding(&argument);
  check_argument(kernel, &argument, sizeof(argument), device);
}

}  // namespace dstrain::emulated
