// JSON text to tree: nlohmann/json finds the syntax, this file the positions and the sentences.
#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/clean_json.h"
#include "engine/config/config_problems.h"
#include "engine/config/json_text.h"

namespace dstrain {
namespace {

constexpr std::size_t kMaxDepth = 64;

/// Turns offsets of a text into "file:line:column"; columns count characters, not bytes.
class Positions {
 public:
  Positions(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_starts_.push_back(i + 1);
    }
  }
  [[nodiscard]] std::string at(std::size_t offset) const {
    offset = std::min(offset, text_.size());
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
    const auto line = static_cast<std::size_t>(next - line_starts_.begin());
    std::size_t column = 1;
    for (std::size_t i = line_starts_[line - 1]; i < offset; ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xC0U) != 0x80U) ++column;
    }
    return fmt::format("{}:{}:{}", file_, line, column);
  }

 private:
  std::string_view text_;
  std::string file_;
  std::vector<std::size_t> line_starts_ = {0};
};

/// Builds the tree from nlohmann's events. They come in the order of the text, so walking the
/// text token by token beside them gives the exact start of each.
class TreeBuilder : public nlohmann::json::json_sax_t {
 public:
  TreeBuilder(const CleanJson& clean,
              const Positions& positions,
              JsonNode& root,
              ConfigProblems* problems = nullptr)
      : clean_(clean), text_(clean.text), positions_(positions), root_(root), problems_(problems) {}

  bool null() override { return add_scalar(JsonNode{}); }
  bool boolean(bool value) override {
    JsonNode node = json_node(JsonNode::Kind::kBool);
    node.boolean = value;
    return add_scalar(std::move(node));
  }
  bool number_integer(std::int64_t value) override {
    JsonNode node = json_node(JsonNode::Kind::kNumber);
    node.number = static_cast<double>(value);
    node.integer = value;
    return add_scalar(std::move(node));
  }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= static_cast<std::uint64_t>(INT64_MAX)) {
      return number_integer(static_cast<std::int64_t>(value));
    }
    JsonNode node = json_node(JsonNode::Kind::kNumber);
    node.number = static_cast<double>(value);
    return add_scalar(std::move(node));
  }
  bool number_float(double value, const std::string& /*token*/) override {
    return add_scalar(json_number(value));
  }
  bool string(std::string& value) override {
    JsonNode node = json_node(JsonNode::Kind::kString);
    node.text = value;
    return add_scalar(std::move(node));
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }  // not in JSON text
  bool start_object(std::size_t /*elements*/) override { return open(JsonNode::Kind::kObject); }
  bool start_array(std::size_t /*elements*/) override { return open(JsonNode::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const std::string where = positions_.at(next_token());
    JsonNode& object = *open_.back();
    for (const JsonMember& member : object.members) {
      if (member.key == name) refuse_second(member, where, path_of(name));
    }
    object.members.push_back({.key = name, .where = where, .value = {}});
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    // The text behind "last read" is the file's own, and may hold anything.
    std::string_view message = error.what();
    message = message.substr(0, message.find("; last read"));
    const auto says = [&](std::string_view part) {
      return message.find(part) != std::string_view::npos;
    };
    const bool after_separator = says("while parsing object key") || says("while parsing value") ||
                                 (says("while parsing array") && !says("expected"));
    std::size_t start = skip_blanks(cursor_);
    if (after_separator && start < text_.size() && (text_[start] == ',' || text_[start] == ':')) {
      start = skip_blanks(start + 1);
    }
    if (start >= text_.size()) throw_at_end();
    start = std::min(start, std::max<std::size_t>(position, 1) - 1);
    throw_config_error(positions_.at(start), "", explain(message, token_at(start)));
  }

 private:
  void refuse_second(const JsonMember& first, const std::string& where, const std::string& path) {
    const ConfigError error({.where = where,
                             .path = path,
                             .message = fmt::format("given twice; the first is at {}", first.where),
                             .mend = {{ConfigEdit::Kind::kRemoveSecond, path, ""}}});
    if (problems_ == nullptr) throw error;
    problems_->add(error.problems().front());
  }

  [[noreturn]] void throw_at_end() const {
    if (open_.empty()) {
      throw_config_error(positions_.at(text_.size()), "", "the file ends where a value should be");
    }
    const bool object = open_.back()->is(JsonNode::Kind::kObject);
    throw_config_error(positions_.at(text_.size()), "",
                       fmt::format("the file ends, but the '{}' at {} is not closed by a '{}'",
                                   object ? '{' : '[', open_.back()->where, object ? '}' : ']'));
  }

  /// Rephrases nlohmann's message for a person who edits a config.
  [[nodiscard]] std::string explain(std::string_view message, std::string_view token) const {
    const auto says = [&](std::string_view part) {
      return message.find(part) != std::string_view::npos;
    };
    if (says("invalid string")) {
      if (says("U+000A") || says("U+000D") || says("missing closing quote")) {
        return "a string is not closed by '\"' before the end of its line";
      }
      return std::string(message.substr(message.find("invalid string")));
    }
    if (says("expected end of input")) {
      return fmt::format("expected the end of the file, found {}", token);
    }
    if (says("while parsing object key")) {
      return fmt::format("expected a key in double quotes, found {}", token);
    }
    if (says("while parsing object separator")) {
      return fmt::format("expected ':' after the key \"{}\", found {}", last_key(), token);
    }
    if (says("while parsing object")) {
      return fmt::format("expected ',' or '}}' after the value of \"{}\", found {}", last_key(),
                         token);
    }
    if (says("while parsing array")) return fmt::format("expected ',' or ']', found {}", token);
    return fmt::format(
        "expected a value (a number, \"string\", true, false, null, {{…}} or […]), found {}",
        token);
  }

  [[nodiscard]] std::size_t skip_blanks(std::size_t offset) const {
    return std::min(text_.find_first_not_of(" \t\r\n", offset), text_.size());
  }

  /// The offending token for a sentence, cut where it gets long.
  [[nodiscard]] std::string token_at(std::size_t start) const {
    constexpr std::size_t kLongest = 40;
    constexpr std::string_view kPunctuation = "{}[],:";
    std::size_t end = start + 1;
    if (text_[start] == '"') {
      end = std::min(text_.find_first_of("\"\n", end), text_.size() - 1) + 1;
    } else if (kPunctuation.find(text_[start]) == std::string_view::npos) {
      end = std::min(text_.find_first_of(" \t\r\n{}[],:", end), text_.size());
    }
    const std::string token(text_.substr(start, std::min(end - start, kLongest)));
    return token.size() == 1 ? fmt::format("'{}'", token) : token;
  }

  /// The path of a key in the innermost open object.
  [[nodiscard]] std::string path_of(const std::string& name) const {
    std::string path;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      const JsonNode& node = *open_[i];
      path += node.is(JsonNode::Kind::kArray) ? std::to_string(node.items.size() - 1)
                                              : node.members.back().key;
      path += '.';
    }
    return path + name;
  }

  [[nodiscard]] std::string last_key() const {
    return open_.empty() || open_.back()->members.empty() ? "" : open_.back()->members.back().key;
  }

  /// Start of the next token; the cursor moves behind it.
  std::size_t next_token() {
    cursor_ = std::min(text_.find_first_not_of(" \t\r\n,:", cursor_), text_.size());
    const std::size_t start = cursor_;
    const char first = start < text_.size() ? text_[start] : '\0';
    if (first == '"') {
      ++cursor_;
      while (cursor_ < text_.size() && text_[cursor_] != '"') {
        cursor_ += text_[cursor_] == '\\' ? 2 : 1;
      }
      ++cursor_;
    } else if (first == '{' || first == '}' || first == '[' || first == ']') {
      ++cursor_;
    } else {
      cursor_ = std::min(text_.find_first_of(" \t\r\n,:]}", cursor_), text_.size());
    }
    return start;
  }

  JsonNode& place(JsonNode node) {
    const std::size_t start = next_token();
    if (const auto named = clean_.named_numbers.find(start); named != clean_.named_numbers.end()) {
      node = json_number(named->second);
    }
    node.where = positions_.at(start);
    if (open_.empty()) return root_ = std::move(node);
    JsonNode& parent = *open_.back();
    if (parent.is(JsonNode::Kind::kArray)) return parent.items.emplace_back(std::move(node));
    return parent.members.back().value = std::move(node);
  }
  bool add_scalar(JsonNode node) {
    place(std::move(node));
    return true;
  }
  bool open(JsonNode::Kind kind) {
    JsonNode& node = place(json_node(kind));
    if (open_.size() == kMaxDepth) {
      throw_config_error(node.where, "", fmt::format("nested more than {} deep", kMaxDepth));
    }
    open_.push_back(&node);
    return true;
  }
  bool close() {
    next_token();
    open_.pop_back();
    return true;
  }

  const CleanJson& clean_;
  std::string_view text_;
  const Positions& positions_;
  JsonNode& root_;
  ConfigProblems* problems_;
  std::vector<JsonNode*> open_;  // stays valid: only the innermost container grows
  std::size_t cursor_ = 0;
};

void relocate(JsonNode& node, const std::string& where) {
  node.where = where;
  for (JsonNode& item : node.items) {
    relocate(item, where);
  }
  for (JsonMember& member : node.members) {
    member.where = where;
    relocate(member.value, where);
  }
}

}  // namespace

JsonNode parse_json_document(std::string_view text,
                             const std::string& file,
                             ConfigProblems* problems) {
  const Positions positions(text, file);
  const CleanJson clean = clean_json(text);
  if (clean.unclosed_comment) {
    throw_config_error(positions.at(*clean.unclosed_comment), "", "this /* comment is not closed");
  }
  const std::size_t first = clean.text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) {
    throw_config_error(file, "", "holds only blanks and comments; expected {…}");
  }
  if (clean.text[first] != '{') {
    throw_config_error(positions.at(first), "",
                       "a config is one JSON object and begins with '{', but this does not");
  }
  JsonNode root;
  TreeBuilder builder(clean, positions, root, problems);
  nlohmann::json::sax_parse(clean.text, &builder);  // throws ConfigError through the builder
  return root;
}

std::optional<JsonNode> parse_json_value(std::string_view text, const std::string& where) {
  const Positions positions(text, where);
  JsonNode root;
  const CleanJson clean{.text = std::string(text)};
  TreeBuilder builder(clean, positions, root);
  try {
    nlohmann::json::sax_parse(clean.text, &builder);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  relocate(root, where);
  return root;
}

}  // namespace dstrain
