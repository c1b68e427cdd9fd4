#include "engine/spec/json_comments.h"

#include <algorithm>

namespace dstrain {
namespace {

/// Just behind the string that starts at `start`, or at the line's end if it is not closed.
std::size_t skip_string(std::string_view text, std::size_t start) {
  std::size_t i = start + 1;
  while (i < text.size() && text[i] != '"' && text[i] != '\n') {
    i += text[i] == '\\' ? 2 : 1;
  }
  return i + 1;
}

void blank(std::string& text, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (text[i] != '\n' && text[i] != '\r') text[i] = ' ';
  }
}

void blank_trailing_commas(std::string& text) {
  constexpr std::size_t kNone = std::string::npos;
  std::size_t comma = kNone;  // the last token, if it is a comma that follows a value
  char previous = '[';
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ++i;
      continue;
    }
    if ((c == ']' || c == '}') && comma != kNone) text[comma] = ' ';
    const bool follows_value =
        previous != '[' && previous != '{' && previous != ',' && previous != ':';
    comma = c == ',' && follows_value ? i : kNone;
    previous = c;
    i = c == '"' ? skip_string(text, i) : i + 1;
  }
}

}  // namespace

CommentFree blank_comments(std::string_view text) {
  CommentFree result{.text = std::string(text), .unclosed_comment = std::nullopt};
  std::string& clean = result.text;
  if (text.starts_with("\xEF\xBB\xBF")) blank(clean, 0, 3);
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (text[i] == '"') {
      i = skip_string(text, i);
    } else if (text[i] == '#' || rest.starts_with("//")) {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      blank(clean, i, end);
      i = end;
    } else if (rest.starts_with("/*")) {
      const std::size_t close = text.find("*/", i + 2);
      if (close == std::string_view::npos) {
        result.unclosed_comment = i;
        return result;
      }
      blank(clean, i, close + 2);
      i = close + 2;
    } else {
      ++i;
    }
  }
  blank_trailing_commas(clean);
  return result;
}

}  // namespace dstrain
