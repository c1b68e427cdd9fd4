// MappedCheckpointFile: a whole file, readable in memory without copying it. The size is that of
// the moment of opening; a file that another process cuts short meanwhile ends this process with
// SIGBUS, which cannot happen to a checkpoint: its files are never changed after their folder has
// its name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace dstrain {

class MappedCheckpointFile {
 public:
  /// Throws CheckpointError with the path and the cause.
  explicit MappedCheckpointFile(std::filesystem::path path);
  MappedCheckpointFile(const MappedCheckpointFile&) = delete;
  MappedCheckpointFile& operator=(const MappedCheckpointFile&) = delete;
  ~MappedCheckpointFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// These bytes no longer count as this process's memory; they are read again when next touched.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace dstrain
