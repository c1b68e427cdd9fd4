#include "engine/checkpoint/piece_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "engine/base/checksum.h"

namespace dstrain {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{2} << 20;  // stays in the cache until it is copied
constexpr std::int64_t kAheadBytes = std::int64_t{16} << 20;  // asked of the disk beyond it

}  // namespace

PieceReader::PieceReader(const Manifest& manifest, std::filesystem::path checkpoint)
    : manifest_(manifest), checkpoint_(std::move(checkpoint)), files_(manifest.files.size()) {}

PieceReader::OpenFile& PieceReader::open(std::size_t index) {
  OpenFile& file = files_[index];
  if (file.header) {
    return file;
  }
  const StoredFile& stored = manifest_.files[index];
  const std::filesystem::path path = checkpoint_ / stored.name;
  try {
    file.header = std::make_unique<SafetensorsFile>(path);
  } catch (const CheckpointError& error) {
    throw DamagedCheckpoint(error.what());
  }
  if (checksum(file.header->header()) != stored.header_checksum) {
    throw DamagedCheckpoint(
        fmt::format("{}: its header is damaged: it does not have the checksum that the manifest "
                    "says",
                    path.string()));
  }
  file.data = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.data) {
    throw DamagedCheckpoint(fmt::format("cannot open {}: {}", path.string(), strerror(errno)));
  }
  (void)::posix_fadvise(file.data.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

const SafetensorsEntry& PieceReader::entry_of(const StoredPiece& piece) {
  const SafetensorsFile& file = file_of(piece);
  const auto entry = file.tensors().find(piece.key);
  const std::vector<std::int64_t> shape{piece.range.flat.size()};
  const std::string_view dtype = stored_name(piece.dtype);
  if (entry == file.tensors().end() || entry->second.dtype != dtype ||
      entry->second.shape != shape) {
    throw DamagedCheckpoint(fmt::format("{}: \"{}\" is not there as {} elements of {}", file.path(),
                                        piece.key, shape[0], dtype));
  }
  return entry->second;
}

PieceReader::Place PieceReader::place_of(const StoredPiece& piece) {
  const auto header_bytes = static_cast<std::int64_t>(file_of(piece).header().size());
  return {.file = piece.file, .begin_byte = header_bytes + entry_of(piece).begin_byte};
}

void PieceReader::read(const StoredPiece& piece, const Visit& visit) {
  const Place place = place_of(piece);
  const OpenFile& file = open(piece.file);
  const std::int64_t element_bytes = size_of(piece.dtype);
  const std::int64_t bytes = piece.range.flat.size() * element_bytes;
  buffer_.resize(static_cast<std::size_t>(kPartBytes));
  RunningChecksum sum;
  for (std::int64_t done = 0; done < bytes; done += kPartBytes) {
    const std::int64_t part = std::min(kPartBytes, bytes - done);
    fill(file, piece, place.begin_byte + done, part);
    sum.add({buffer_.data(), static_cast<std::size_t>(part)});
    visit({done / element_bytes, (done + part) / element_bytes}, buffer_.data());
  }
  if (const std::uint64_t found = sum.value(); found != piece.checksum) {
    throw DamagedCheckpoint(
        fmt::format("{}: \"{}\" is damaged: its {} bytes have checksum {}, the manifest says {}",
                    file.header->path(), piece.key, bytes, checksum_text(found),
                    checksum_text(piece.checksum)));
  }
}

void PieceReader::fill(const OpenFile& file,
                       const StoredPiece& piece,
                       std::int64_t at,
                       std::int64_t bytes) {
  // This is only advice: a system that ignores it still reads the data.
  (void)::posix_fadvise(file.data.get(), at + bytes, kAheadBytes, POSIX_FADV_WILLNEED);
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t count = ::pread(file.data.get(), buffer_.data() + done,
                                  static_cast<std::size_t>(bytes - done), at + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw DamagedCheckpoint(fmt::format("{}: \"{}\" cannot be read at byte {}: {}",
                                          file.header->path(), piece.key, at + done,
                                          count < 0 ? strerror(errno) : "the file ends there"));
    }
    done += count;
  }
}

}  // namespace dstrain
