// ScratchFile: space on a disk for as long as this process lives. The file has no name from the
// moment it is open, so that the system frees it however the process ends, a kill and a power
// failure included, and nothing is left to be found later. Reads and writes go around the system's
// cache (O_DIRECT): what is kept on a disk for want of memory must not take memory there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/base/file_descriptor.h"
#include "engine/plan/space.h"

namespace dstrain {

class ScratchFile {
 public:
  /// Offsets, sizes and addresses of reads and writes are multiples of this.
  static constexpr std::int64_t kBlockBytes = kDiskBlockBytes;
  [[nodiscard]] static constexpr std::int64_t in_blocks(std::int64_t bytes) {
    return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  }

  /// Makes the file, empty. Throws ConfigError where `folder` is not a folder of this host that can
  /// be written, or lies in memory (tmpfs); its path there is `key`, of the config. Logs a warning
  /// where the file system has no direct access.
  ScratchFile(std::filesystem::path folder, const std::string& key);

  /// Reserves zeros for `bytes` at the end and returns their offset. `what` says what for. Throws
  /// StorageError with the needed and the free bytes.
  std::int64_t extend(std::int64_t bytes, const std::string& what);

  [[nodiscard]] int descriptor() const { return file_.get(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// The bytes that are free for this process on the file system.
  [[nodiscard]] std::int64_t free_bytes() const;

 private:
  std::filesystem::path folder_;
  FileDescriptor file_;
  std::int64_t bytes_ = 0;
};

}  // namespace dstrain
