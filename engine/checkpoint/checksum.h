// The checksum of checkpoints: XXH3, 64 bits. It runs at memory speed and finds damage; it does not
// protect against somebody who wants to fool it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dstrain {

std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);

/// 16 hexadecimal digits, and back; false if `text` is anything else.
std::string checksum_text(std::uint64_t value);
bool parse_checksum(std::string_view text, std::uint64_t& value);

}  // namespace dstrain
