// Characters of UTF-8 and their Unicode properties, from utf8proc. All texts here are UTF-8 without
// faults (whole_characters.h makes them so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

/// The character that begins at `at`, which moves past it.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t first = byte(at);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xE0) {
    at += 2;
    return (first & 0x1FU) << 6U | (byte(at - 1) & 0x3FU);
  }
  if (first < 0xF0) {
    at += 3;
    return (first & 0x0FU) << 12U | (byte(at - 2) & 0x3FU) << 6U | (byte(at - 1) & 0x3FU);
  }
  at += 4;
  return (first & 0x07U) << 18U | (byte(at - 3) & 0x3FU) << 12U | (byte(at - 2) & 0x3FU) << 6U |
         (byte(at - 1) & 0x3FU);
}

/// The number of bytes of the character that begins with this one.
inline std::size_t bytes_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append_character(std::string& text, char32_t character);

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
std::string normalized(std::string_view text, NormalForm form);

/// The property White_Space.
bool is_space(char32_t character);
/// The general categories N*, P* and ASCII's punctuation, M*.
bool is_numeric(char32_t character);
bool is_punctuation(char32_t character);
bool is_mark(char32_t character);
/// Appends the character's lower case, which may be two characters.
void append_lower_case(std::string& text, char32_t character);

/// The end of the grapheme cluster that begins at `at` (UAX 29).
std::size_t end_of_grapheme(std::string_view text, std::size_t at);

}  // namespace dstrain
