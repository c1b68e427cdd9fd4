// AppendedFile: a file at whose end a run adds a record after each step. A record is written whole
// or not at all: one for which there is no space waits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/base/file_descriptor.h"

namespace dstrain {

/// Opens a file for reading and appending, and creates it where it is missing. Throws StorageError,
/// also where something other than a file has that name.
FileDescriptor open_for_appending(const std::filesystem::path& path);

class AppendedFile {
 public:
  /// Takes over `file`, which has `bytes` and ends with a whole record.
  AppendedFile(std::filesystem::path path, FileDescriptor file, std::int64_t bytes);
  /// Opens the file and cuts it after its first `bytes`. Throws StorageError.
  AppendedFile(std::filesystem::path path, std::int64_t bytes);

  /// Takes a record, which the next flush() writes. `step` is told where that fails.
  void add(std::int64_t step, std::string_view record);
  /// Writes what was added. Throws StorageError; records that could not be written then wait for
  /// the next call, which writes them first, and the file ends with its last whole record.
  void flush();
  [[nodiscard]] bool has_unwritten() const { return !unwritten_.empty(); }
  /// Where the next record will begin.
  [[nodiscard]] std::int64_t end_byte() const {
    return bytes_ + static_cast<std::int64_t>(unwritten_.size());
  }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t bytes_ = 0;  ///< in the file
  std::string unwritten_;
  std::int64_t last_step_ = 0;
};

}  // namespace dstrain
