#include "engine/config/member_spans.h"

#include <algorithm>

#include "engine/config/json_text.h"

namespace dstrain {
namespace {

class SpanScanner {
 public:
  explicit SpanScanner(std::string_view text) : text_(text) {}

  std::vector<MemberSpan> scan() {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip();
    spans_.push_back({.path = "", .key_begin = at_, .key_end = at_});
    scan_value(0);
    return std::move(spans_);
  }

 private:
  void skip() { at_ = skip_blanks_and_comments(text_, at_); }
  [[nodiscard]] char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  /// The span has been added already, so that members of the value come after it.
  void scan_value(std::size_t span) {
    skip();
    spans_[span].value_begin = at_;
    if (here() == '{' || here() == '[') {
      scan_container(span, here() == '{');
    } else {
      skip_scalar();
    }
    spans_[span].value_end = at_;
  }

  void scan_container(std::size_t container, bool is_object) {
    ++at_;
    for (std::size_t index = 0;; ++index) {
      skip();
      if (here() == ',') {
        ++at_;
        skip();
      }
      if (at_ >= text_.size()) return;
      if (here() == '}' || here() == ']') {
        ++at_;
        return;
      }
      MemberSpan member{.key_begin = at_};
      std::string name = std::to_string(index);
      if (is_object) {
        skip_scalar();
        const auto key =
            parse_json_value(text_.substr(member.key_begin, at_ - member.key_begin), "");
        name = key ? key->text : "";
      }
      member.key_end = at_;
      const std::string& block = spans_[container].path;
      member.path = block.empty() ? name : block + "." + name;
      spans_.push_back(member);
      skip();
      if (here() == ':') ++at_;
      scan_value(spans_.size() - 1);
    }
  }

  void skip_scalar() {
    const std::size_t begin = at_;
    if (here() == '"') {
      ++at_;
      while (at_ < text_.size() && text_[at_] != '"')
        at_ += text_[at_] == '\\' ? 2 : 1;
      at_ = std::min(at_ + 1, text_.size());
    } else {
      at_ = std::min(text_.find_first_of(" \t\r\n,:[]{}#/", at_), text_.size());
    }
    at_ = std::min(std::max(at_, begin + 1), text_.size());  // always advances, whatever the text
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<MemberSpan> spans_;
};

}  // namespace

std::vector<MemberSpan> member_spans(std::string_view text) {
  return SpanScanner(text).scan();
}

std::size_t skip_blanks_and_comments(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n') {
      ++at;
    } else if (text[at] == '#' || rest.starts_with("//")) {
      at = std::min(text.find('\n', at), text.size());
    } else if (rest.starts_with("/*")) {
      at = std::min(text.find("*/", at + 2), text.size() - 2) + 2;
    } else {
      return at;
    }
  }
  return at;
}

}  // namespace dstrain
