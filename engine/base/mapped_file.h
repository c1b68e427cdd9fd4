// MappedFile: a whole file, read-only, in the address space. Pages come in when they are touched,
// so a file larger than memory is fine. A reader keeps seeing the same bytes when the file is
// replaced by a rename; a file that is cut short in place ends this process with SIGBUS, but
// dstrain never changes data sets or checkpoints that way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace dstrain {

class MappedFile {
 public:
  /// Throws Failure, an exception made of one sentence, if `path` is not a file that can be read.
  template <typename Failure>
  [[nodiscard]] static MappedFile open(const std::string& path) {
    MappedFile file(path);
    if (const std::string why = file.map(); !why.empty()) throw Failure(path + ": " + why);
    return file;
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t num_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  // The following are advice: where the kernel declines, reading is slower and nothing else
  // changes.
  /// Says that the file will be read once from front to back, so that the kernel reads ahead
  /// generously.
  void expect_sequential_reads() const noexcept;
  /// Says that small pieces from anywhere will be read: what will_need() has not named is not read
  /// ahead.
  void expect_random_reads() const noexcept;
  /// Starts reading [begin, begin + length) from the disk without waiting for it.
  void will_need(std::int64_t begin, std::int64_t length) const noexcept;
  /// Stops counting these bytes as this process's memory; they are read again when next touched.
  void release(std::span<const std::byte> part) const noexcept;

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}
  /// Returns why it cannot be mapped, as a clause; empty: it is mapped.
  [[nodiscard]] std::string map();
  void advise(std::span<const std::byte> part, int advice) const noexcept;

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace dstrain
