// SectionText: what lies between two added tokens, on its way from the user's text to the model:
// changed by normalizers, then cut into pieces by pre-tokenizers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

struct TextSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct SectionText {
  std::string text{};              ///< UTF-8
  std::vector<TextSpan> pieces{};  ///< of the text, in order; none empty
  /// Whether it begins where the user's text does, with nothing of that removed: what is put in
  /// front of the "first" word goes only there.
  bool at_start = true;
  /// Whether it continues in the middle of a document, so that nothing is put in front of it.
  bool continues = false;

  [[nodiscard]] std::string_view piece(TextSpan span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

}  // namespace dstrain
