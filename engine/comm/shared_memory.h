// SharedMemory: pages that two processes of one host have mapped, and how they come by them.
//
// One of the two makes a file that has no name, sealed so that neither can make it shorter under
// the other, and passes its descriptor over the Unix socket between them. There is nothing to clean
// up: the kernel frees the pages when the second of the two is gone, however it goes.
//
//   giver → taker   'm' and the descriptor, or 'n': there is none
//   taker → giver   'm': it has mapped it, or 'n'; only after an 'm'
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/comm/socket.h"

namespace dstrain {

/// Owns a mapping, or none.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Maps `bytes` of a file that must be sealed at that size. Throws std::runtime_error.
  static SharedMemory map(const FileDescriptor& file, std::int64_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Either memory, or the reason why there is none.
struct SharedMemoryOrReason {
  SharedMemory memory;
  std::string reason;
};

/// Makes `bytes` of zeros, every page of them at once so that none can be missing later, and sends
/// them over `socket`, or that there are none; doesn't wait. They are shared once the other end
/// has_mapped() them. Throws std::runtime_error if the connection has failed.
SharedMemoryOrReason give_memory(const FileDescriptor& socket, std::int64_t bytes);
/// The other end: waits for what is given and answers. Throws std::runtime_error if the connection
/// fails or the deadline passes.
SharedMemoryOrReason take_memory(const FileDescriptor& socket,
                                 std::int64_t bytes,
                                 Clock::time_point deadline);
/// Waits for the answer to memory that was given. Throws as take_memory() does.
bool has_mapped(const FileDescriptor& socket, Clock::time_point deadline);

}  // namespace dstrain
