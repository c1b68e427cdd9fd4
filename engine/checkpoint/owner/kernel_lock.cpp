#include "engine/checkpoint/owner/kernel_lock.h"

#include <cerrno>

#include <fcntl.h>

namespace dstrain {
namespace {

/// The lock covers the file from its first byte to whatever its last one is.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

LockAttempt try_lock(int fd) {
  struct flock lock = whole_file();
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) {
    return LockAttempt::kTaken;
  }
  return errno == EAGAIN || errno == EACCES ? LockAttempt::kHeldByOther
                                            : LockAttempt::kNotSupported;
}

LockState look_at_lock(int fd) {
  struct flock lock = whole_file();
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0) {
    return LockState::kNotSupported;
  }
  return lock.l_type == F_UNLCK ? LockState::kFree : LockState::kHeld;
}

}  // namespace dstrain
