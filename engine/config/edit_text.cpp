#include "engine/config/edit_text.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/member_spans.h"

namespace dstrain {
namespace {

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string name_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

/// Makes a text fit for one line of a comment, cut where it gets long.
std::string in_comment(std::string text) {
  constexpr std::size_t kLongest = 160;
  if (text.size() > kLongest) {
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
      --end;
    text = text.substr(0, end) + "…";
  }
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  for (auto end = text.find("*/"); end != std::string::npos; end = text.find("*/")) {
    text.insert(end + 1, " ");  // the line may lie in a longer comment
  }
  return text;
}

class TextEditor {
 public:
  explicit TextEditor(std::string text) : text_(std::move(text)), spans_(member_spans(text_)) {}

  bool set(const std::string& path, const std::string& json, const std::string& why) {
    if (const MemberSpan* span = find(path)) {
      const std::string old = value_of(*span);
      const std::size_t at = span->value_begin;
      text_.replace(at, span->value_end - at, json);
      comment_line(at + json.size(), fmt::format("was: {}: {}", old, why));
      return true;
    }
    const std::string block = parent_of(path);
    const std::string member = fmt::format("{}: {}", json_quote(name_of(path)), json);
    const MemberSpan* span = find(block);
    if (span == nullptr) return !block.empty() && set(block, "{" + member + "}", why);
    if (value_of(*span) == "null") return set(block, "{" + member + "}", why);
    if (text_[span->value_begin] != '{') return false;
    insert(*span, member, why);
    return true;
  }

  bool rename(const std::string& from, const std::string& to, const std::string& why) {
    const MemberSpan* span = find(from);
    if (span == nullptr || find(to) != nullptr) return false;
    if (parent_of(from) != parent_of(to)) {
      const std::string value = value_of(*span);
      return remove(*span, why) && set(to, value, fmt::format("at {}", from));
    }
    const std::size_t at = span->key_begin;
    const std::string old = text_.substr(at, span->key_end - at);
    const std::size_t end_of_line = span->value_begin;  // a block continues below it
    const std::string name = json_quote(name_of(to));
    text_.replace(at, old.size(), name);
    comment_line(end_of_line - old.size() + name.size(), fmt::format("was: {}: {}", old, why));
    return true;
  }

  bool remove(const std::string& path, const std::string& why) {
    const MemberSpan* span = find(path);
    return span != nullptr && !path.empty() && remove(*span, why);
  }
  bool remove_second(const std::string& path, const std::string& why) {
    const auto is_it = [&](const MemberSpan& span) { return span.path == path; };
    const auto last = std::find_if(spans_.rbegin(), spans_.rend(), is_it);
    return last != spans_.rend() && !path.empty() && remove(*last, why);
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  [[nodiscard]] const MemberSpan* find(const std::string& path) const {
    const auto found = std::find_if(spans_.begin(), spans_.end(),
                                    [&](const MemberSpan& span) { return span.path == path; });
    return found == spans_.end() ? nullptr : &*found;
  }

  /// The value on one line, without comments.
  [[nodiscard]] std::string value_of(const MemberSpan& span) const {
    const std::string raw = text_.substr(span.value_begin, span.value_end - span.value_begin);
    if (raw.front() != '{' && raw.front() != '[') return raw;
    return parse_json_document("{\"value\": " + raw + "}", "").find("value")->dump();
  }

  /// Removes a member and the comma that no longer separates anything.
  bool remove(const MemberSpan& member, const std::string& why) {
    const MemberSpan span = member;
    const std::string old = text_.substr(span.key_begin, span.key_end - span.key_begin) +
                            (span.key_end > span.key_begin ? ": " : "") + value_of(span);
    const std::size_t next = skip_blanks_and_comments(text_, span.value_end);
    const bool has_comma = next < text_.size() && text_[next] == ',';
    if (has_comma) text_.erase(next, 1);
    text_.erase(span.key_begin, span.value_end - span.key_begin);
    std::size_t at = span.key_begin;
    const std::size_t before_blanks = text_.find_last_not_of(" \t", at - 1);
    if (before_blanks != std::string::npos && text_[before_blanks] != '\n') {
      text_.erase(before_blanks + 1, at - before_blanks - 1);
      at = before_blanks + 1;
    }
    if (!has_comma) {
      if (const auto before = comma_before(span)) {
        text_.erase(*before, 1);
        --at;
      }
    }
    comment_line(at, fmt::format("was: {}: {}", old, why));
    spans_ = member_spans(text_);
    return true;
  }

  [[nodiscard]] std::optional<std::size_t> comma_before(const MemberSpan& member) const {
    std::size_t end = 0;
    for (const MemberSpan& span : spans_) {
      const bool is_sibling = parent_of(span.path) == parent_of(member.path) && !span.path.empty();
      if (is_sibling && span.value_end <= member.key_begin) end = std::max(end, span.value_end);
    }
    const std::size_t comma = skip_blanks_and_comments(text_, end);
    const bool found = end > 0 && comma < member.key_begin && text_[comma] == ',';
    return found ? std::optional(comma) : std::nullopt;
  }

  /// Inserts a member as the first of the object, on a line of its own where the others have one.
  void insert(const MemberSpan& object, const std::string& member, const std::string& why) {
    const std::size_t inside = object.value_begin + 1;
    const std::size_t first = skip_blanks_and_comments(text_, inside);
    const bool is_empty = first >= text_.size() || text_[first] == '}';
    const std::size_t line = first == 0 ? 0 : text_.rfind('\n', first - 1) + 1;
    const std::string indent = text_.substr(line, first - line);
    const bool own_line =
        line > inside && indent.find_first_not_of(" \t") == std::string::npos && !is_empty;
    if (own_line) {
      const std::string added = indent + member + ",";
      text_.insert(line, added + "\n");
      comment_line(line + added.size(), "added: " + why);
    } else {
      text_.insert(inside, member + (is_empty ? "" : ", "));
      comment_line(inside, fmt::format("added: {}: {}", member, why));
    }
    spans_ = member_spans(text_);
  }

  void comment_line(std::size_t at, const std::string& comment) {
    std::size_t end = std::min(text_.find('\n', at), text_.size());
    if (end > 0 && text_[end - 1] == '\r') --end;
    text_.insert(end, " // " + in_comment(comment));
  }

  std::string text_;
  std::vector<MemberSpan> spans_;
};

}  // namespace

std::optional<std::string> edit_text(const std::string& text,
                                     const ConfigEdit& edit,
                                     const std::string& why) {
  TextEditor editor(text);
  bool done = false;
  switch (edit.kind) {
    case ConfigEdit::Kind::kSet:
      done = editor.set(edit.path, edit.value, why);
      break;
    case ConfigEdit::Kind::kRemove:
      done = editor.remove(edit.path, why);
      break;
    case ConfigEdit::Kind::kRename:
      done = editor.rename(edit.path, edit.value, why);
      break;
    case ConfigEdit::Kind::kRemoveSecond:
      done = editor.remove_second(edit.path, why);
      break;
  }
  return done ? std::optional(editor.take()) : std::nullopt;
}

}  // namespace dstrain
