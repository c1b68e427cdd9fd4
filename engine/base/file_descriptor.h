// FileDescriptor: owns one open file, socket or pipe of this process and closes it at the end.
#pragma once

#include <cerrno>
#include <utility>

#include <unistd.h>

namespace dstrain {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Gives up ownership: the caller closes it, and may look at what close() returns.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  /// Leaves errno as it is, since the reason why there is no file is often reported after this.
  void reset() {
    if (fd_ < 0) return;
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    errno = error;
  }

 private:
  int fd_ = -1;
};

}  // namespace dstrain
