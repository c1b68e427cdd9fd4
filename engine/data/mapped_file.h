// MappedFile: a whole file, read-only, in the address space. Pages come in when they are touched,
// so a file larger than memory is fine. Whoever opened it sees the same bytes for good when the
// file is replaced by a rename; a file truncated in place is the one thing it cannot survive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dstrain {

class MappedFile {
 public:
  /// Throws ConfigError if `path` is not a file that can be read.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data_, static_cast<std::size_t>(num_bytes_)};
  }

  /// The file will be read once from front to back: read ahead generously.
  void expect_sequential_reads() const noexcept;
  /// Small pieces from anywhere will be read: what will_need() has not named is not read ahead.
  void expect_random_reads() const noexcept;
  /// Starts reading [begin, begin + length) from the disk without waiting for it.
  void will_need(std::int64_t begin, std::int64_t length) const noexcept;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::int64_t num_bytes_ = 0;
};

}  // namespace dstrain
