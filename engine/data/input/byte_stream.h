// ByteStream: the bytes of an input file from front to back, decompressed where it is compressed.
// Memory is bounded by a buffer and what the compression's own window takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/data/input/compression.h"

namespace dstrain {

/// The reason why a file was not read. It is caught where the file is counted as unreadable.
struct ReadFailure {
  std::string reason;
};

class ByteStream {
 public:
  /// Throws ReadFailure if the file cannot be opened.
  static std::unique_ptr<ByteStream> open(const std::string& path, Compression compression);
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// Writes the next bytes to the front of `out` and returns how many; 0 at the end only. Throws
  /// ReadFailure, and ConfigError, which names file and offset, where compressed data are cut short
  /// or damaged.
  virtual std::size_t read(std::span<char> out) = 0;
  /// Skips `bytes` bytes, or to the end.
  virtual void skip(std::int64_t bytes) = 0;
  /// How far it has come in the file on the disk, in bytes.
  [[nodiscard]] virtual std::int64_t file_offset() const = 0;
  /// The approximate number of bytes still to come: exact for a file that is not compressed and
  /// does not change.
  [[nodiscard]] virtual std::int64_t expected_bytes() const = 0;
};

}  // namespace dstrain
