#include "engine/train/records/wandb_log.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <libdeflate.h>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBlock = 32768;
constexpr std::int64_t kPieceHeader = 7;
enum Kind : std::uint8_t { kWhole = 1, kFirst, kMiddle, kLast };

std::uint32_t checksum(Kind kind, std::string_view data) {
  return libdeflate_crc32(libdeflate_crc32(0, &kind, 1), data.data(), data.size());
}

void add_piece(std::string& bytes, Kind kind, std::string_view data) {
  const std::uint32_t crc = checksum(kind, data);
  const auto length = static_cast<std::uint16_t>(data.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes.push_back(static_cast<char>(kind));
  bytes.append(data);
}

}  // namespace

std::string wandb_log_header() {
  return {":W&B\xe1\xbe\x00", 7};
}

std::string wandb_log_record(std::int64_t at, std::string_view data) {
  std::string bytes;
  bool is_first = true;
  do {
    std::int64_t left = kBlock - (at + static_cast<std::int64_t>(bytes.size())) % kBlock;
    if (left < kPieceHeader) {
      bytes.append(static_cast<std::size_t>(left), '\0');
      left = kBlock;
    }
    const auto room = static_cast<std::size_t>(left - kPieceHeader);
    const std::string_view piece = data.substr(0, room);
    data.remove_prefix(piece.size());
    const bool is_last = data.empty();
    add_piece(bytes, is_first ? (is_last ? kWhole : kFirst) : (is_last ? kLast : kMiddle), piece);
    is_first = false;
  } while (!data.empty());
  return bytes;
}

std::int64_t read_wandb_log(const std::filesystem::path& path,
                            const std::function<bool(std::string_view data)>& keep) {
  std::ifstream in(path, std::ios::binary);
  std::string piece(wandb_log_header().size(), '\0');
  if (!in.read(piece.data(), static_cast<std::streamsize>(piece.size())) ||
      piece != wandb_log_header()) {
    return 0;
  }
  auto at = static_cast<std::int64_t>(piece.size());
  std::int64_t kept = at;
  std::string record;
  while (in) {
    const std::int64_t left = kBlock - at % kBlock;
    if (left < kPieceHeader) {
      in.ignore(left);
      at += left;
    }
    std::uint32_t crc = 0;
    std::uint16_t length = 0;
    Kind kind{};
    in.read(reinterpret_cast<char*>(&crc), sizeof(crc));
    in.read(reinterpret_cast<char*>(&length), sizeof(length));
    in.read(reinterpret_cast<char*>(&kind), sizeof(kind));
    piece.resize(length);
    if (!in.read(piece.data(), length) || crc != checksum(kind, piece)) break;
    at += kPieceHeader + length;
    if (kind == kWhole || kind == kFirst) record.clear();
    record += piece;
    if (kind == kFirst || kind == kMiddle) continue;
    if (!keep(record)) break;
    kept = at;
  }
  if (in.bad()) throw StorageError(fmt::format("cannot read {}", path.string()));
  return kept;
}

}  // namespace dstrain
