#include "engine/tokenizer/line_cut.h"

#include <algorithm>

#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

bool is_good_cut(std::string_view text, std::size_t at, const EncodeInside& encode) {
  constexpr std::size_t kAround = 128;
  std::size_t begin = at - std::min(at, kAround);
  while (begin < at && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
    ++begin;  // not within a character
  }
  const std::string_view right = text.substr(at, kAround);
  const std::size_t right_bytes = length_of_whole_characters(right);
  std::vector<std::int32_t> whole;
  std::vector<std::int32_t> parts;
  encode(text.substr(begin, at - begin + right_bytes), whole);
  encode(text.substr(begin, at - begin), parts);
  encode(right.substr(0, right_bytes), parts);
  return whole == parts;
}

}  // namespace

std::size_t length_up_to_line_end(std::string_view text, const EncodeInside& encode) {
  constexpr int kMostTries = 32;
  std::size_t at = text.size();
  for (int i = 0; i < kMostTries && at != 0 && at != std::string_view::npos; ++i) {
    at = text.rfind('\n', at - 1);
    if (at != std::string_view::npos && at + 1 < text.size() && is_good_cut(text, at + 1, encode)) {
      return at + 1;
    }
  }
  const std::size_t line_end = text.rfind('\n');
  return line_end != std::string_view::npos ? line_end + 1 : length_of_whole_characters(text);
}

}  // namespace dstrain
