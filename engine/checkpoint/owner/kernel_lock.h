// Locks of the kernel on a whole file, exclusive, of the open file and not of the process
// (F_OFD_SETLK): they end when the last copy of the descriptor is closed, so a crash cannot leave
// one behind, two opens of one process exclude each other, and anybody may look whether there is
// one without taking it. On NFS the server keeps them for all hosts, unless the file system was
// mounted without locks.
#pragma once

#include <cstdint>

namespace dstrain {

enum class LockAttempt : std::uint8_t {
  kTaken,
  kHeldByOther,
  kNotSupported  ///< this file system, or this kernel, has none
};
/// `fd` must be open for writing. Does not wait.
LockAttempt try_lock(int fd);

enum class LockState : std::uint8_t { kFree, kHeld, kNotSupported };
/// Whether somebody holds a lock that excludes one of `fd`'s, which need only be open for reading.
LockState look_at_lock(int fd);

}  // namespace dstrain
