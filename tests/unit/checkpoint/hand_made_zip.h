// A zip archive made byte by byte after the application note, so that each field can be given a
// wrong value. Fields that a test does not change are as torch.save writes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/foreign/pytorch/zip_directory.h"

namespace dstrain::checkpoint_test {

struct ZipMember {
  std::string name;
  std::string content;
  std::uint16_t method = 0;
  std::uint16_t flags = 0x0808;
  std::int64_t size_error = 0;    ///< added to both sizes in the directory
  std::int64_t stored_error = 0;  ///< added to the stored size alone
  std::int64_t offset_error = 0;  ///< added to the local header's place
  std::string local_name;         ///< "": the same
  bool is_wide = false;           ///< sizes and place in a zip64 field
  std::uint32_t crc_error = 0;    ///< what the directory's CRC-32 differs in
};

template <typename T>
std::string number(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// CRC-32 bit by bit, after ISO 3309: independent of the library that the reader uses.
inline std::uint32_t crc32_of(const std::string& content) {
  std::uint32_t crc = ~0U;
  for (const char c : content) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ (0xedb88320U & (0U - (crc & 1U)));
    }
  }
  return ~crc;
}

struct ZipEnds {
  bool is_zip64 = false;
  std::int64_t num_entries_error = 0;
  std::int64_t begin_error = 0;
  std::int64_t size_error = 0;
  std::uint16_t disk = 0;
  std::string after_directory;
  std::string comment;
};

/// A local header and its content, as at `begin`.
inline std::string local_part(const ZipMember& member) {
  const std::string& name = member.local_name.empty() ? member.name : member.local_name;
  return "PK\x03\x04" + number<std::uint16_t>(0) + number(member.flags) + number(member.method) +
         number<std::uint32_t>(0) + number<std::uint32_t>(0) + number<std::uint32_t>(0) +
         number<std::uint32_t>(0) + number(static_cast<std::uint16_t>(name.size())) +
         number<std::uint16_t>(0) + name + member.content;
}

inline std::string directory_part(const ZipMember& member, std::int64_t begin, std::int64_t size) {
  const std::int64_t bytes = size + member.size_error;
  const std::int64_t stored = bytes + member.stored_error;
  const std::int64_t place = begin + member.offset_error;
  const auto narrow = [&](std::int64_t value) {
    return number(member.is_wide ? 0xffffffffU : static_cast<std::uint32_t>(value));
  };
  const std::string extra = member.is_wide ? number<std::uint16_t>(1) + number<std::uint16_t>(24) +
                                                 number(bytes) + number(stored) + number(place)
                                           : "";
  return "PK\x01\x02" + number<std::uint16_t>(0) + number<std::uint16_t>(0) + number(member.flags) +
         number(member.method) + number<std::uint32_t>(0) +
         number(crc32_of(member.content) ^ member.crc_error) + narrow(stored) + narrow(bytes) +
         number(static_cast<std::uint16_t>(member.name.size())) +
         number(static_cast<std::uint16_t>(extra.size())) + number<std::uint16_t>(0) +
         number<std::uint16_t>(0) + number<std::uint16_t>(0) + number<std::uint32_t>(0) +
         narrow(place) + member.name + extra;
}

/// The end of an archive whose directory lies at `begin`.
inline std::string end_part(std::int64_t begin,
                            std::int64_t size,
                            std::int64_t num_entries,
                            const ZipEnds& ends) {
  begin += ends.begin_error;
  size += ends.size_error;
  num_entries += ends.num_entries_error;
  std::string text;
  if (ends.is_zip64) {
    const std::int64_t place = begin + size;
    text += "PK\x06\x06" + number<std::uint64_t>(44) + number<std::uint16_t>(0) +
            number<std::uint16_t>(0) + number<std::uint32_t>(0) + number<std::uint32_t>(0) +
            number(num_entries) + number(num_entries) + number(size) + number(begin);
    text += "PK\x06\x07" + number<std::uint32_t>(0) + number(place) + number<std::uint32_t>(1);
  }
  const auto count =
      ends.is_zip64 ? std::uint16_t{0xffff} : static_cast<std::uint16_t>(num_entries);
  const auto wide = [&](std::int64_t value) {
    return number(ends.is_zip64 ? 0xffffffffU : static_cast<std::uint32_t>(value));
  };
  return text + "PK\x05\x06" + number(ends.disk) + number(ends.disk) + number(count) +
         number(count) + wide(size) + wide(begin) +
         number(static_cast<std::uint16_t>(ends.comment.size())) + ends.comment;
}

inline std::string zip_of(const std::vector<ZipMember>& members, const ZipEnds& ends = {}) {
  std::string text;
  std::string directory;
  for (const ZipMember& member : members) {
    directory += directory_part(member, static_cast<std::int64_t>(text.size()),
                                static_cast<std::int64_t>(member.content.size()));
    text += local_part(member);
  }
  const auto begin = static_cast<std::int64_t>(text.size());
  directory += ends.after_directory;
  return text + directory +
         end_part(begin, static_cast<std::int64_t>(directory.size()),
                  static_cast<std::int64_t>(members.size()), ends);
}

/// An archive whose contents were edited, with the checksums that they have now.
inline std::string with_true_checksums(std::string zip) {
  const std::vector<ZipEntry> entries = read_zip_directory(std::as_bytes(std::span(zip)));
  std::size_t at = 0;  // the directory follows the contents and is in their order
  for (const ZipEntry& entry : entries) {
    at = std::max(at, static_cast<std::size_t>(entry.begin_byte + entry.bytes));
  }
  for (const ZipEntry& entry : entries) {
    at = zip.find("PK\x01\x02", at);
    const auto begin = static_cast<std::size_t>(entry.begin_byte);
    const std::string content = zip.substr(begin, static_cast<std::size_t>(entry.bytes));
    zip.replace(at + 16, 4, number(crc32_of(content)));
    at += 4;
  }
  return zip;
}

/// A torch file with one pickle and storages by key.
inline std::string torch_zip_of(const std::string& pickle,
                                const std::vector<std::pair<std::string, std::string>>& storages) {
  std::vector<ZipMember> members{{.name = "a/data.pkl", .content = pickle},
                                 {.name = "a/byteorder", .content = "little"}};
  for (const auto& [key, content] : storages) {
    members.push_back({.name = "a/data/" + key, .content = content});
  }
  return zip_of(members);
}

}  // namespace dstrain::checkpoint_test
