// Lexer: cuts a template into its text and the tokens of its tags. White space around tags goes as
// chat templates expect it: a line break behind a block tag and the indentation in front of one are
// no text (Jinja's trim_blocks and lstrip_blocks), and "-" takes all white space on its side.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    kText,        ///< between tags
    kPrintBegin,  ///< {{
    kPrintEnd,    ///< }}
    kBlockBegin,  ///< {%
    kBlockEnd,    ///< %}
    kName,
    kInteger,
    kFloat,
    kString,    ///< its text, without quotes and escapes
    kOperator,  ///< "+", "==", "("
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text{};
  int line = 1;

  [[nodiscard]] bool is(Kind wanted) const { return kind == wanted; }
  [[nodiscard]] bool is(Kind wanted, std::string_view text_wanted) const {
    return kind == wanted && text == text_wanted;
  }
};

/// Ends with one of kEnd. Throws TemplateError, which begins with "line N: ".
std::vector<Token> tokens_of(std::string_view source);

}  // namespace dstrain::jinja
