// Characters: the elements of a string or a sequence by their place, as Python counts them: the
// characters of a string, not its bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/jinja/value.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain::jinja {

/// The number of characters.
[[nodiscard]] inline std::int64_t count_characters(std::string_view text) {
  std::int64_t count = 0;
  for (const char byte : text) {
    count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

class Characters {
 public:
  /// A string or a sequence, which must outlive it.
  explicit Characters(const Value& value) : value_(value) {
    if (!value.is_string()) return;
    const std::string& text = value.string();
    is_ascii_ = count_characters(text) == static_cast<std::int64_t>(text.size());
    for (std::size_t at = 0; !is_ascii_ && at < text.size(); at += bytes_of_character(text[at])) {
      begins_.push_back(at);
    }
  }
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(!value_.is_string() ? value_.items().size()
                                     : is_ascii_         ? value_.string().size()
                                                         : begins_.size());
  }
  [[nodiscard]] std::string_view text_at(std::int64_t place) const {
    const std::string_view text = value_.string();
    const auto index = static_cast<std::size_t>(place);
    const std::size_t begin = is_ascii_ ? index : begins_[index];
    return text.substr(begin, bytes_of_character(text[begin]));
  }
  [[nodiscard]] Value at(std::int64_t place) const {
    return value_.is_string() ? Value(text_at(place))
                              : value_.items()[static_cast<std::size_t>(place)];
  }

 private:
  const Value& value_;
  bool is_ascii_ = false;
  std::vector<std::size_t> begins_;  // of a string that is not ASCII
};

}  // namespace dstrain::jinja
