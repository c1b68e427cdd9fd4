#include "engine/checkpoint/foreign/pytorch/zip_directory.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <libdeflate.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/little_endian.h"

// The layout is that of PKWARE's application note 6.3.10: local headers with their contents, the
// central directory, its zip64 end and locator where needed, the end record.

namespace dstrain {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kCentralHeader = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kZip64End = 0x06064b50;
constexpr std::uint32_t kZip64Locator = 0x07064b50;
constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::size_t kCentralHeaderBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kZip64EndBytes = 56;
constexpr std::size_t kZip64LocatorBytes = 20;
constexpr std::size_t kMaxCommentBytes = 65535;
constexpr std::uint32_t kSeeZip64 = 0xffffffff;
constexpr std::uint16_t kZip64Extra = 1;
constexpr std::uint16_t kEncrypted = 1;

struct Directory {
  std::uint64_t begin_byte = 0;
  std::uint64_t bytes = 0;
  std::uint64_t num_entries = 0;
};

[[noreturn]] void fail(const std::string& what) {
  throw CheckpointError("damaged zip archive: " + what);
}

/// Returns a part of `bytes`; throws if they end before it.
Bytes part(Bytes bytes, std::uint64_t begin, std::uint64_t size, std::string_view what) {
  if (begin > bytes.size() || size > bytes.size() - begin) {
    fail(fmt::format("{} of {} bytes at byte {} reaches past the end at {}", what, size, begin,
                     bytes.size()));
  }
  return bytes.subspan(begin, size);
}

/// Where the end record lies. A comment may follow it, which fills the file exactly.
std::size_t find_end(Bytes file) {
  if (file.size() >= kEndBytes) {
    const std::size_t last = file.size() - kEndBytes;
    const std::size_t first = last - std::min(last, kMaxCommentBytes);
    for (std::size_t at = last + 1; at-- > first;) {
      if (load_at<std::uint32_t>(file, at) == kEnd &&
          load_at<std::uint16_t>(file, at + 20) == file.size() - at - kEndBytes) {
        return at;
      }
    }
  }
  throw CheckpointError(
      "is not a zip archive, or was cut short: it has no end record (torch.save writes zip "
      "archives "
      "since torch 1.6)");
}

Directory find_directory(Bytes file) {
  const std::size_t end = find_end(file);
  if (load_at<std::uint16_t>(file, end + 4) != 0 || load_at<std::uint16_t>(file, end + 6) != 0) {
    const bool in_zip64 = load_at<std::uint16_t>(file, end + 4) == 0xffff;
    if (!in_zip64) {
      throw CheckpointError("is one part of a zip archive split over several files");
    }
  }
  Directory directory{.begin_byte = load_at<std::uint32_t>(file, end + 16),
                      .bytes = load_at<std::uint32_t>(file, end + 12),
                      .num_entries = load_at<std::uint16_t>(file, end + 10)};
  std::uint64_t directory_limit = end;
  if (end >= kZip64LocatorBytes &&
      load_at<std::uint32_t>(file, end - kZip64LocatorBytes) == kZip64Locator) {
    const auto begin = load_at<std::uint64_t>(file, end - kZip64LocatorBytes + 8);
    const Bytes record = part(file.first(end), begin, kZip64EndBytes, "the zip64 end record");
    if (load_at<std::uint32_t>(record, 0) != kZip64End) {
      fail(fmt::format("no zip64 end record at byte {}", begin));
    }
    directory = {.begin_byte = load_at<std::uint64_t>(record, 48),
                 .bytes = load_at<std::uint64_t>(record, 40),
                 .num_entries = load_at<std::uint64_t>(record, 32)};
    directory_limit = begin;
  }
  (void)part(file.first(directory_limit), directory.begin_byte, directory.bytes, "the directory");
  return directory;
}

/// The zip64 extra field, which stands in for fields that do not fit into 32 bits.
class WideFields {
 public:
  WideFields(Bytes extra, const std::string& name) : name_(name) {
    for (std::size_t at = 0; at + 4 <= extra.size();) {
      const std::size_t size = load_at<std::uint16_t>(extra, at + 2);
      const Bytes content = part(extra, at + 4, size, "an extra field");
      if (load_at<std::uint16_t>(extra, at) == kZip64Extra) {
        rest_ = content;
        return;
      }
      at += 4 + size;
    }
  }

  std::uint64_t widen(std::uint32_t field) {
    if (field != kSeeZip64) {
      return field;
    }
    if (rest_.size() < 8) {
      fail(fmt::format("entry \"{}\" has no zip64 size", name_));
    }
    const auto value = load_at<std::uint64_t>(rest_, 0);
    rest_ = rest_.subspan(8);
    return value;
  }

 private:
  const std::string& name_;
  Bytes rest_;
};

struct Extent {
  std::uint64_t begin_byte = 0;  ///< of the local header
  std::uint64_t end_byte = 0;
  const std::string* name = nullptr;
};

void check_overlaps(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin_byte < b.begin_byte; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin_byte < extents[i - 1].end_byte) {
      fail(fmt::format("entries \"{}\" and \"{}\" overlap at byte {}", *extents[i - 1].name,
                       *extents[i].name, extents[i].begin_byte));
    }
  }
}

std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads one entry of the directory at `at` and moves past it; sets `local_begin` to the local
/// header's place.
ZipEntry read_entry(Bytes directory, std::size_t& at, std::uint64_t& local_begin) {
  const Bytes header = part(directory, at, kCentralHeaderBytes, "a directory entry");
  if (load_at<std::uint32_t>(header, 0) != kCentralHeader) {
    fail(fmt::format("no entry at byte {} of the directory", at));
  }
  const std::size_t name_bytes = load_at<std::uint16_t>(header, 28);
  const std::size_t extra_bytes = load_at<std::uint16_t>(header, 30);
  const std::size_t comment_bytes = load_at<std::uint16_t>(header, 32);
  const Bytes tail = part(directory, at + kCentralHeaderBytes,
                          name_bytes + extra_bytes + comment_bytes, "a directory entry");
  at += kCentralHeaderBytes + tail.size();
  ZipEntry entry{.name = text_of(tail.first(name_bytes))};
  if ((load_at<std::uint16_t>(header, 8) & kEncrypted) != 0) {
    throw CheckpointError(fmt::format("entry \"{}\" is encrypted", entry.name));
  }
  const auto method = load_at<std::uint16_t>(header, 10);
  if (method != 0) {
    throw CheckpointError(fmt::format(
        "entry \"{}\" is compressed (method {}), expected stored as torch.save writes it; unpack "
        "the archive and pack it again without compression",
        entry.name, method));
  }
  WideFields wide(tail.subspan(name_bytes, extra_bytes), entry.name);
  const std::uint64_t bytes = wide.widen(load_at<std::uint32_t>(header, 24));
  const std::uint64_t stored_bytes = wide.widen(load_at<std::uint32_t>(header, 20));
  local_begin = wide.widen(load_at<std::uint32_t>(header, 42));
  if (bytes != stored_bytes) {
    fail(fmt::format("entry \"{}\" has {} bytes but {} stored ones", entry.name, bytes,
                     stored_bytes));
  }
  if (bytes > INT64_MAX) {
    fail(fmt::format("entry \"{}\" has {} bytes", entry.name, bytes));
  }
  entry.bytes = static_cast<std::int64_t>(bytes);
  entry.crc32 = load_at<std::uint32_t>(header, 16);
  return entry;
}

}  // namespace

std::vector<ZipEntry> read_zip_directory(Bytes file) {
  const Directory place = find_directory(file);
  const Bytes directory = file.subspan(place.begin_byte, place.bytes);
  const Bytes contents = file.first(place.begin_byte);
  if (place.num_entries > place.bytes / kCentralHeaderBytes) {
    fail(fmt::format("{} entries in a directory of {} bytes", place.num_entries, place.bytes));
  }
  std::vector<ZipEntry> entries;
  entries.reserve(place.num_entries);  // the extents point to their names
  std::vector<Extent> extents;
  std::set<std::string_view> names;
  std::size_t at = 0;
  while (entries.size() < place.num_entries) {
    std::uint64_t local_begin = 0;
    ZipEntry& entry = entries.emplace_back(read_entry(directory, at, local_begin));
    const Bytes local = part(contents, local_begin, kLocalHeaderBytes, "an entry's header");
    const std::size_t name_bytes = load_at<std::uint16_t>(local, 26);
    const std::size_t skipped_bytes = name_bytes + load_at<std::uint16_t>(local, 28);
    const std::uint64_t begin = local_begin + kLocalHeaderBytes + skipped_bytes;
    const Bytes name =
        part(contents, local_begin + kLocalHeaderBytes, name_bytes, "an entry's name");
    if (load_at<std::uint32_t>(local, 0) != kLocalHeader || text_of(name) != entry.name ||
        load_at<std::uint16_t>(local, 8) != 0) {
      fail(fmt::format("entry \"{}\" is not at byte {}", entry.name, local_begin));
    }
    (void)part(contents, begin, static_cast<std::uint64_t>(entry.bytes),
               fmt::format("entry \"{}\"", entry.name));
    if (!names.insert(entry.name).second) {
      fail(fmt::format("entry \"{}\" comes twice", entry.name));
    }
    entry.begin_byte = static_cast<std::int64_t>(begin);
    extents.push_back({local_begin, begin + static_cast<std::uint64_t>(entry.bytes), &entry.name});
  }
  if (at != directory.size()) {
    fail(fmt::format("{} bytes follow the directory's {} entries", directory.size() - at,
                     entries.size()));
  }
  check_overlaps(std::move(extents));
  return entries;
}

void check_crc32(Bytes file, const ZipEntry& entry) {
  const Bytes content = part(file, static_cast<std::uint64_t>(entry.begin_byte),
                             static_cast<std::uint64_t>(entry.bytes), "an entry");
  const std::uint32_t found = libdeflate_crc32(0, content.data(), content.size());
  if (found != entry.crc32) {
    throw DamagedCheckpoint(fmt::format(
        "entry \"{}\" has the CRC-32 {:08x}, its archive says {:08x}: bytes of it changed since it "
        "was written (or torch was told not to compute checksums: write it again with "
        "torch.serialization.set_crc32_options(True))",
        entry.name, found, entry.crc32));
  }
}

}  // namespace dstrain
