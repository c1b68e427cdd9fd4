// OutputFile: a file that appears whole or not at all. It is written as PATH.partial, which is
// locked against a second writer, and gets its name by a rename once its bytes are on the disk.
// Whatever ends the program before, no half file carries the final name. Another process may
// continue what was kept of a partial file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file_descriptor.h"

namespace dstrain {

class OutputFile {
 public:
  /// Throws DiskError, also if another process is writing the same file.
  explicit OutputFile(std::string final_path);
  /// Continues a partial file after its first `num_bytes` bytes, which it must have.
  OutputFile(std::string final_path, std::int64_t num_bytes);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the partial file unless it was published or kept.
  ~OutputFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  template <typename T>
  void append_value(const T& value) {
    append(std::as_bytes(std::span<const T, 1>(&value, 1)));
  }
  /// Removes what was appended after the first `num_bytes` bytes.
  void shrink_to(std::int64_t num_bytes);
  [[nodiscard]] std::int64_t num_bytes() const {
    return written_ + static_cast<std::int64_t>(buffer_.size());
  }

  /// Puts everything on the disk, still under the partial name.
  void sync();
  /// Does sync(), and lets the partial file stay if it is never published.
  void keep();
  /// Undoes keep().
  void let_go() { kept_ = false; }
  /// Called after sync(): gives the file its name, replacing an older one.
  void publish();

 private:
  void flush();
  void write_out(std::span<const std::byte> bytes);
  void open_locked();
  [[noreturn]] void fail(const char* what) const;

  std::string final_path_;
  std::string partial_path_;
  FileDescriptor file_;  ///< closed, and so unlocked, after the partial file is removed
  bool published_ = false;
  bool kept_ = false;
  std::int64_t written_ = 0;
  std::vector<std::byte> buffer_;
};

/// The path at which an OutputFile is until it is published.
std::string partial_path(const std::string& final_path);

/// Makes renames and removals in `folder` durable.
void sync_folder(const std::string& folder);

}  // namespace dstrain
