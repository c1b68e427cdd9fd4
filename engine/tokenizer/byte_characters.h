// The characters as which byte-level tokenizers write the 256 bytes in their files: printable ones
// of Latin-1 stand for themselves, the rest follow from U+0100 on (GPT-2's bytes_to_unicode).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// The character of each byte, in UTF-8: "A" for 65, "Ġ" for 32.
const std::array<std::string, 256>& byte_characters();

/// The characters of some bytes, one after the other.
std::string characters_of_bytes(std::string_view bytes);

/// The bytes that these characters stand for; nothing if one of them stands for no byte.
std::optional<std::string> bytes_of_characters(std::string_view characters);

}  // namespace dstrain
