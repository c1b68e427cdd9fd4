// DurableFiles: every change that saving a checkpoint makes to the disk goes through here, so that
// failures read alike (path, cause, needed and free bytes) and that a test can stop, fail or record
// the work before any single change. All failures are StorageError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

/// A change that is about to be made.
struct DiskChange {
  enum class Kind : std::uint8_t {
    kMakeFolder,
    kCreateFile,
    kWrite,
    kSyncFile,
    kCloseFile,
    kSyncFolder,
    kRename,
    kRemove
  };
  Kind kind;
  std::filesystem::path path;
  std::filesystem::path target = {};  ///< of a rename
};
/// Called before each change, in the thread that makes it. May throw StorageError.
using DiskProbe = std::function<void(const DiskChange&)>;

class DurableFiles {
 public:
  explicit DurableFiles(DiskProbe probe = {});

  /// Makes a folder, and its parents where they are missing; it lasts once this returns.
  void make_folder(const std::filesystem::path& folder) const;
  /// Does the same, but throws where the parent is missing, since somebody has removed it.
  void make_folder_in_parent(const std::filesystem::path& folder) const;
  /// Creates or replaces a file, which is on disk once this returns; its name, once synced.
  void write_file(const std::filesystem::path& path, std::string_view content) const;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  /// Makes the names in a folder last.
  void sync_folder(const std::filesystem::path& folder) const;
  /// Removes a file, or a folder with all it holds; does nothing if it is not there.
  void remove_tree(const std::filesystem::path& path) const;

 private:
  friend class DurableFile;
  void about_to(DiskChange::Kind kind,
                const std::filesystem::path& path,
                const std::filesystem::path& target = {}) const;
  DiskProbe probe_;
};

/// One file being written from front to back. Small writes are gathered, large ones go straight
/// from the caller's memory. A file that was not finished is closed and left to be removed.
class DurableFile {
 public:
  /// `bytes` that will come: reserved at once where the file system can, so that a full disk is
  /// found before anything has been written.
  DurableFile(const DurableFiles& files, std::filesystem::path path, std::int64_t bytes);

  void write(std::span<const std::byte> data);
  /// All that was written is on disk once this returns.
  void finish();

 private:
  void write_out(std::span<const std::byte> data);
  [[noreturn]] void fail(std::string_view what, int error) const;

  const DurableFiles& files_;
  std::filesystem::path path_;
  std::int64_t bytes_;
  std::int64_t written_bytes_ = 0;
  FileDescriptor file_;
  std::vector<std::byte> pending_;
};

}  // namespace dstrain
