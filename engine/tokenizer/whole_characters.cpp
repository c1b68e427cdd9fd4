#include "engine/tokenizer/whole_characters.h"

#include <cstdint>
#include <cstring>

namespace dstrain {
namespace {

enum class Kind : std::uint8_t { kWhole, kUnfinished, kBroken };

struct Character {
  Kind kind;
  std::size_t bytes;  ///< that belong to it, or that one replacement stands for
};

/// The first character of a text that is not empty. The ranges of the second byte (Unicode 15,
/// table 3-7) leave out forms that are too long, surrogates and everything beyond U+10FFFF.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return {Kind::kWhole, 1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {Kind::kBroken, 1};
  }
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {Kind::kUnfinished, i};
    }
    const unsigned lowest = i > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned highest = i > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < lowest || byte(i) > highest) {
      return {Kind::kBroken, i};
    }
  }
  return {Kind::kWhole, length};
}

}  // namespace

std::string take_whole_characters(std::string& bytes) {
  std::string whole;
  std::string_view left = bytes;
  while (!left.empty()) {
    const Character character = first_character(left);
    if (character.kind == Kind::kUnfinished) {
      break;
    }
    whole += character.kind == Kind::kWhole ? left.substr(0, character.bytes) : kReplacement;
    left.remove_prefix(character.bytes);
  }
  bytes.erase(0, bytes.size() - left.size());
  return whole;
}

std::string as_utf8(std::string bytes) {
  std::string text = take_whole_characters(bytes);
  if (!bytes.empty()) {
    text += kReplacement;
  }
  return text;
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    // Most text is ASCII, of which eight bytes can be recognised at once.
    std::uint64_t eight = 0;
    if (bytes.size() >= sizeof eight) {
      std::memcpy(&eight, bytes.data(), sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        bytes.remove_prefix(sizeof eight);
        continue;
      }
    }
    const Character character = first_character(bytes);
    if (character.kind != Kind::kWhole) {
      return false;
    }
    bytes.remove_prefix(character.bytes);
  }
  return true;
}

std::size_t length_of_whole_characters(std::string_view text) {
  // Step back over the continuation bytes (10xxxxxx) of a character that may be incomplete, and its
  // first byte.
  std::size_t begin = text.size();
  for (int back = 0; back < 4 && begin > 1; ++back) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0U) != 0x80U) {
      return begin;
    }
  }
  return text.size();
}

}  // namespace dstrain
