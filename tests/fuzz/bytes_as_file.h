// Bytes under a path, in memory: for readers that take a file's name.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_target.h"

namespace dstrain::fuzz {

class BytesAsFile {
 public:
  explicit BytesAsFile(Bytes bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    for (std::size_t written = 0; written < bytes.size();) {
      const ssize_t count = write(file_, bytes.data() + written, bytes.size() - written);
      if (count <= 0) throw std::system_error(errno, std::generic_category(), "memfd");
      written += static_cast<std::size_t>(count);
    }
  }
  BytesAsFile(const BytesAsFile&) = delete;
  BytesAsFile& operator=(const BytesAsFile&) = delete;
  ~BytesAsFile() { close(file_); }

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace dstrain::fuzz
