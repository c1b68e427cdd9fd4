#include "engine/checkpoint/checksum.h"

#include <charconv>

#include <fmt/format.h>
#include <xxhash.h>

namespace dstrain {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::string checksum_text(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

bool parse_checksum(std::string_view text, std::uint64_t& value) {
  if (text.size() != 16) {
    return false;
  }
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, 16);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace dstrain
