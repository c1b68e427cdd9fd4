// PieceReader: the bytes of a checkpoint's pieces, each read once, from front to back, and verified
// as they pass. Files are read and not mapped: what the disk cannot give is then an error with a
// file's name instead of a SIGBUS, memory stays bounded whatever a piece's size, and the disk goes
// on reading ahead while bytes are looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"

namespace dstrain {

class PieceReader {
 public:
  /// `manifest` must outlive it.
  PieceReader(const Manifest& manifest, std::filesystem::path checkpoint);

  /// The file that a piece lies in, and the piece's entry in its header. Both throw
  /// DamagedCheckpoint unless the header is the one that was written and has the piece as the
  /// manifest describes it.
  const SafetensorsFile& file_of(const StoredPiece& piece) { return *open(piece.file).header; }
  const SafetensorsEntry& entry_of(const StoredPiece& piece);

  /// The place where a piece lies. Finding it throws as entry_of() does.
  struct Place {
    std::size_t file = 0;
    std::int64_t begin_byte = 0;  ///< in the file
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  Place place_of(const StoredPiece& piece);

  /// Calls `visit` with one part of the piece after the other: elements of it, counted from its
  /// first, and their bytes. Throws DamagedCheckpoint if they cannot be read or if, at the end,
  /// they are not those that were written; parts have been visited by then.
  using Visit = std::function<void(Range elements, const std::byte* bytes)>;
  void read(const StoredPiece& piece, const Visit& visit);

 private:
  struct OpenFile {
    std::unique_ptr<SafetensorsFile> header;
    FileDescriptor data;
  };
  OpenFile& open(std::size_t index);
  /// Fills the buffer from the file.
  void fill(const OpenFile& file, const StoredPiece& piece, std::int64_t at, std::int64_t bytes);

  const Manifest& manifest_;
  std::filesystem::path checkpoint_;
  std::vector<OpenFile> files_;
  std::vector<std::byte> buffer_;
};

}  // namespace dstrain
