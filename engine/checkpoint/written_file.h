// One file of a conversion, from the first byte to the proof that the disk holds it: written under
// another name, synced, read back and compared by checksum, and only then renamed. Whatever dies
// in between leaves nothing under the final name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/base/checksum.h"
#include "engine/checkpoint/durable_files.h"

namespace dstrain {

struct WrittenFile {
  std::string name;
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< of the whole file
};

/// Called with the number of bytes as they are written or read back. May throw, which ends the
/// conversion.
using ByteProgress = std::function<void(std::int64_t bytes)>;

/// A progress function throws this where the user wants the conversion to stop.
class ConversionStopped : public std::runtime_error {
 public:
  ConversionStopped() : std::runtime_error("the conversion was stopped") {}
};

/// ".NAME.part" beside the file: what it is called while it is written.
std::filesystem::path part_path(const std::filesystem::path& path);

/// The bytes that go into a file, counted and summed.
class ByteTally {
 public:
  explicit ByteTally(const ByteProgress& progress) : progress_(progress) {}
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] WrittenFile of(const std::filesystem::path& path) const;

 private:
  const ByteProgress& progress_;
  RunningChecksum checksum_;
  std::int64_t bytes_ = 0;
};

/// Whether a file's bytes are those; they are read from the disk, as far as the system lets one ask
/// for that.
bool holds_bytes(const std::filesystem::path& path,
                 const WrittenFile& expected,
                 const ByteProgress& progress);

/// Calls `write` with part_path(path), checks what it has written, and gives it its name. Throws
/// StorageError if the disk gives back other bytes. The part is removed if anything fails.
WrittenFile write_checked(
    const DurableFiles& files,
    const std::filesystem::path& path,
    const ByteProgress& progress,
    const std::function<WrittenFile(const std::filesystem::path& part)>& write);

}  // namespace dstrain
