#include "engine/config/clean_json.h"

#include <algorithm>
#include <limits>

namespace dstrain {
namespace {

/// Returns the offset just behind the string that starts at `start`, or the line's end if it is not
/// closed.
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

struct NamedNumber {
  std::string_view name;
  double value;
};

/// The name that begins at `start` and is not part of a longer word, or nullptr.
const NamedNumber* number_named_at(std::string_view text, std::size_t start) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr NamedNumber kNumbers[] = {{"Infinity", kInfinity},
                                             {"-Infinity", -kInfinity},
                                             {"NaN", std::numeric_limits<double>::quiet_NaN()}};
  constexpr std::string_view kAround = " \t\r\n,:[]{}";
  if (start > 0 && kAround.find(text[start - 1]) == std::string_view::npos) return nullptr;
  for (const NamedNumber& number : kNumbers) {
    const std::size_t end = start + number.name.size();
    if (text.substr(start).starts_with(number.name) &&
        (end == text.size() || kAround.find(text[end]) != std::string_view::npos)) {
      return &number;
    }
  }
  return nullptr;
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

CleanJson clean_json(std::string_view text) {
  CleanJson result{.text = std::string(text)};
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
    } else if (const auto* number = number_named_at(text, i); number != nullptr) {
      clean[i] = '0';
      blank(clean, i + 1, i + number->name.size());
      result.named_numbers[i] = number->value;
      i += number->name.size();
    } else {
      ++i;
    }
  }
  blank_trailing_commas(clean);
  return result;
}

}  // namespace dstrain
