// Memory of the emulated GPUs. What is allocated is filled with NaN and has guards around it,
// looked at when it is freed. Where the processor has memory protection keys, only work on a stream
// can touch what a GPU holds: the host's own reads and writes of it end the process, as on a
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

/// nullptr: that much is not free on the GPU.
void* allocate(std::size_t bytes, Memory where);
void release(void* data);
/// Whose memory `address` lies in; none: what a GPU must not touch.
std::optional<Memory> find_memory(const void* address);
std::size_t free_bytes(int device);

/// Copied by GPUs so far to memory of the host that is not pinned, which is slow.
std::int64_t bytes_to_pageable();
void count_bytes_to_pageable(std::size_t bytes);

/// While it exists, this thread is a GPU's.
class DeviceAccess {
 public:
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  ~DeviceAccess();
};

/// Ends the process with a sentence: `what` is given `address`, which is not of this GPU, or of any
/// if `device` is kPinned.
void check_on_device(const char* what, const void* address, int device);
/// The same of everything in an argument of a kernel that looks like a pointer. Takes the argument
/// as a copy whose padding is zero.
void check_argument(const char* kernel, const void* argument, std::size_t bytes, int device);
template <typename Argument>
void check_argument(const char* kernel, Argument argument, int device) {
  __builtin_clear_padding(&argument);
  check_argument(kernel, &argument, sizeof(argument), device);
}

}  // namespace dstrain::emulated
