#include "engine/jinja/lexer.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "engine/jinja/text_methods.h"
#include "engine/jinja/value.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// Line breaks as one character, and none at the end.
std::string normalized(std::string_view source) {
  std::string text = replaced(replaced(source, "\r\n", "\n", -1), "\r", "\n", -1);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      take_text();
      if (at_ < source_.size()) take_tag();
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", line_, what));
  }
  [[nodiscard]] bool has(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }
  void move_to(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    begins_line_ = to > at_ ? source_[to - 1] == '\n' : begins_line_;
    at_ = to;
  }
  void skip_blanks() {
    std::size_t to = at_;
    while (to < source_.size() && is_blank(source_[to])) {
      ++to;
    }
    move_to(to);
  }

  /// Everything up to the next tag, with what the tag does to white space in front of it.
  void take_text() {
    std::size_t end = at_;
    while (end < source_.size() &&
           !(source_[end] == '{' && end + 1 < source_.size() &&
             (source_[end + 1] == '{' || source_[end + 1] == '%' || source_[end + 1] == '#'))) {
      ++end;
    }
    add_text(std::string_view(source_).substr(at_, end - at_), end);
    move_to(end);
  }

  /// `tag` is where the tag behind the text begins, or the source's end.
  void add_text(std::string_view text, std::size_t tag) {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (tag < source_.size() && sign == '-') {
      text = text.substr(0, stripped(text, std::nullopt, Side::kRight).size());
    } else if (tag < source_.size() && sign != '+' && source_[tag + 1] != '{') {
      const std::size_t line_break = text.rfind('\n');
      const std::size_t line = line_break == std::string_view::npos ? 0 : line_break + 1;
      if ((line > 0 || begins_line_) &&
          std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), is_blank)) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
  }

  void take_tag() {
    const char kind = source_[at_ + 1];
    if (kind == '#') {
      take_comment();
    } else if (const auto raw = find_word("raw", at_); kind == '%' && raw) {
      take_raw(*raw);
    } else {
      const int line = line_;
      add(kind == '{' ? Token::Kind::kPrintBegin : Token::Kind::kBlockBegin, "");
      const std::size_t behind = at_ + 2;
      const bool has_sign =
          behind < source_.size() && (source_[behind] == '-' || source_[behind] == '+');
      // "{{+" and "{{-" followed by an operand are a sign of the tag all the same, as in Jinja.
      move_to(behind + (has_sign ? 1 : 0));
      take_expression(kind == '{' ? "}}" : "%}", line);
    }
  }

  /// The end of a tag: where its text goes on. `%}` eats one line break, and "-" all white space.
  void take_end(std::string_view mark) {
    const bool strips = source_[at_] == '-';
    const bool keeps = source_[at_] == '+';
    move_to(at_ + mark.size() + (strips || keeps ? 1 : 0));
    if (strips) {
      skip_blanks();
    } else if (!keeps && mark != "}}" && has("\n")) {
      move_to(at_ + 1);
    }
  }
  [[nodiscard]] bool is_at_end(std::string_view mark) const {
    return has(mark) || ((has("-") || (mark != "}}" && has("+"))) &&
                         std::string_view(source_).substr(at_ + 1).starts_with(mark));
  }

  void take_comment() {
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) refuse("a comment {# without its #}");
    const bool has_sign = end > at_ + 2 && (source_[end - 1] == '-' || source_[end - 1] == '+');
    move_to(has_sign ? end - 1 : end);
    take_end("#}");
  }

  /// Where a tag {% word %} ends, if one begins at `tag`: its mark, or the sign in front of it.
  [[nodiscard]] std::optional<std::size_t> find_word(std::string_view word, std::size_t tag) const {
    const std::string_view all = source_;
    if (!all.substr(tag).starts_with("{%")) return std::nullopt;
    std::size_t at = tag + 2;
    if (at < all.size() && (all[at] == '-' || all[at] == '+')) ++at;
    const auto skip = [&] {
      while (at < all.size() && is_blank(all[at])) {
        ++at;
      }
    };
    skip();
    if (!all.substr(at).starts_with(word)) return std::nullopt;
    at += word.size();
    skip();
    const std::size_t sign = at < all.size() && (all[at] == '-' || all[at] == '+') ? 1 : 0;
    return all.substr(at + sign).starts_with("%}") ? std::optional(at) : std::nullopt;
  }

  void take_raw(std::size_t end_of_begin) {
    const int line = line_;
    move_to(end_of_begin);
    const bool strips = has("-");
    move_to(at_ + (strips || has("+") ? 3 : 2));
    if (strips) skip_blanks();
    std::size_t tag = source_.find("{%", at_);
    while (tag != std::string::npos && !find_word("endraw", tag)) {
      tag = source_.find("{%", tag + 2);
    }
    if (tag == std::string::npos) {
      throw TemplateError(fmt::format("line {}: raw without its endraw", line));
    }
    add_text(std::string_view(source_).substr(at_, tag - at_), tag);
    move_to(*find_word("endraw", tag));
    take_end("%}");
  }

  /// The tokens up to the tag's end, and that; inside brackets no mark is an end.
  void take_expression(std::string_view mark, int line) {
    std::string open;
    while (true) {
      skip_blanks();
      if (at_ == source_.size()) {
        throw TemplateError(fmt::format("line {}: a tag without its {}", line, mark));
      }
      if (open.empty() && is_at_end(mark)) {
        add(mark == "}}" ? Token::Kind::kPrintEnd : Token::Kind::kBlockEnd, "");
        take_end(mark);
        return;
      }
      const char c = source_[at_];
      if (begins_name(c)) {
        take_name();
      } else if (is_digit(c)) {
        take_number();
      } else if (c == '\'' || c == '"') {
        take_string(c);
      } else {
        take_operator(open);
      }
    }
  }

  void take_name() {
    std::size_t end = at_;
    while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) {
      ++end;
    }
    add(Token::Kind::kName, source_.substr(at_, end - at_));
    move_to(end);
  }

  void take_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
        ++end;
      }
    };
    digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_float = true;
        end = exponent;
        digits();
      }
    }
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger,
        replaced(source_.substr(at_, end - at_), "_", "", -1));
    move_to(end);
  }

  void take_string(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\' || at + 1 == source_.size()) {
        text += source_[at++];
        continue;
      }
      ++at;
      at += append_escape(std::string_view(source_).substr(at), text);
    }
    if (at >= source_.size()) refuse(fmt::format("a string without its closing {}", quote));
    add(Token::Kind::kString, std::move(text));
    move_to(at + 1);
  }

  /// What a backslash and the characters behind it stand for; returns how many those are.
  static std::size_t append_escape(std::string_view behind, std::string& text) {
    const auto number = [&](std::size_t from, std::size_t most, unsigned base) {
      char32_t value = 0;
      std::size_t digits = 0;
      for (; digits < most && from + digits < behind.size(); ++digits) {
        const char c = behind[from + digits];
        const int digit = is_digit(c)            ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : 99;
        if (digit >= static_cast<int>(base)) break;
        value = value * base + static_cast<char32_t>(digit);
      }
      return std::pair(value, digits);
    };
    const char c = behind[0];
    const std::string_view names = "abfnrtv\\'\"\n";
    const std::string_view meant("\a\b\f\n\r\t\v\\'\"", 10);
    if (const std::size_t at = names.find(c); at != std::string_view::npos) {
      if (at < meant.size()) text += meant[at];  // a line break that is escaped is none
      return 1;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const auto [value, found] = number(1, digits, 16);
      if (found == digits) {
        append_character(text, value);
        return 1 + digits;
      }
    } else if (const auto [value, found] = number(0, 3, 8); found > 0) {
      append_character(text, value);
      return found;
    }
    text += '\\';
    text += c;
    return 1;
  }

  void take_operator(std::string& open) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                           [&](std::string_view text) { return has(text); });
    if (found == std::end(kOperators)) {
      refuse(fmt::format("the character {} is no part of an expression", source_[at_]));
    }
    const char c = source_[at_];
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) refuse(fmt::format("{} closes nothing", c));
      open.pop_back();
    }
    add(Token::Kind::kOperator, std::string(*found));
    move_to(at_ + found->size());
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace dstrain::jinja
