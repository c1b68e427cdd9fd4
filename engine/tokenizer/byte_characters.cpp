#include "engine/tokenizer/byte_characters.h"

#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

constexpr char32_t kFirstOther = 0x100;  ///< of the first byte that is not printable
constexpr char32_t kBehindLast = 0x144;

bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// The byte of each character below kBehindLast; -1 for none.
std::array<int, kBehindLast> make_bytes() {
  std::array<int, kBehindLast> bytes{};
  bytes.fill(-1);
  char32_t next = kFirstOther;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes[is_printable(byte) ? byte : next++] = static_cast<int>(byte);
  }
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> made;
    char32_t next = kFirstOther;
    for (unsigned byte = 0; byte < 256; ++byte) {
      append_character(made[byte], is_printable(byte) ? byte : next++);
    }
    return made;
  }();
  return characters;
}

std::string characters_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += byte_characters()[static_cast<unsigned char>(byte)];
  }
  return text;
}

std::optional<std::string> bytes_of_characters(std::string_view characters) {
  static const std::array<int, kBehindLast> bytes = make_bytes();
  std::string made;
  for (std::size_t at = 0; at < characters.size();) {
    const char32_t character = next_character(characters, at);
    if (character >= kBehindLast || bytes[character] < 0) {
      return std::nullopt;
    }
    made += static_cast<char>(static_cast<unsigned char>(bytes[character]));
  }
  return made;
}

}  // namespace dstrain
