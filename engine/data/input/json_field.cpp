#include "engine/data/input/json_field.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

/// Follows nlohmann's events down the path. `depth_` counts the objects and lists that are open,
/// `matched_` the number of those that lie on the path.
class FieldFinder final : public nlohmann::json_sax<Json> {
 public:
  explicit FieldFinder(const std::vector<std::string>& keys) : keys_(keys) {}

  bool null() override { return take("null"); }
  bool boolean(bool /*value*/) override { return take("a truth value"); }
  bool number_integer(std::int64_t /*value*/) override { return take("a number"); }
  bool number_unsigned(std::uint64_t /*value*/) override { return take("a number"); }
  bool number_float(double /*value*/, const std::string& /*digits*/) override {
    return take("a number");
  }
  bool binary(Json::binary_t& /*value*/) override { return take("binary"); }
  bool string(std::string& value) override {
    if (is_wanted_) {
      text = std::move(value);
      has_text = true;
      is_wanted_ = false;
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    is_object = is_object || depth_ == 0;
    const bool leads_on = depth_ == 0 || leads_in_;
    take("an object");
    matched_ += leads_on && matched_ == depth_ ? 1 : 0;
    ++depth_;
    leads_in_ = false;
    return true;
  }
  bool end_object() override {
    --depth_;
    matched_ = std::min(matched_, depth_);
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    has_messages = has_messages || (depth_ == 1 && is_messages_);
    take("a list");
    leads_in_ = false;
    ++depth_;
    return true;
  }
  bool end_array() override { return end_object(); }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      is_messages_ = name == "messages";
      if (outer_keys.size() < kShownKeys) {
        outer_keys.push_back(name);
      }
    }
    const bool is_on_path =
        matched_ == depth_ && depth_ <= keys_.size() && name == keys_[depth_ - 1];
    if (is_on_path) {  // whatever an earlier one of that name held
      has_text = false;
      other_kind = nullptr;
    }
    is_wanted_ = is_on_path && depth_ == keys_.size();
    leads_in_ = is_on_path && !is_wanted_;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at …: syntax error while … - invalid literal;
    // last read: '…'; expected …": only the middle is useful.
    std::string_view words = error.what();
    if (const std::size_t dash = words.find(" - "); dash != std::string_view::npos) {
      words.remove_prefix(dash + 3);
    } else if (const std::size_t colon = words.rfind(": "); colon != std::string_view::npos) {
      words.remove_prefix(colon + 2);
    }
    syntax =
        fmt::format("is not JSON: byte {}: {}", position, words.substr(0, words.find("; last")));
    return false;
  }

  static constexpr std::size_t kShownKeys = 5;
  std::string text;
  bool has_text = false;
  const char* other_kind = nullptr;  ///< of the field, where it is not a string
  bool is_object = false;
  bool has_messages = false;
  std::vector<std::string> outer_keys;
  std::string syntax;

 private:
  /// Takes a value that is not a string.
  bool take(const char* kind) {
    if (is_wanted_) {
      other_kind = kind;
      is_wanted_ = false;
    }
    leads_in_ = false;
    return true;
  }

  const std::vector<std::string>& keys_;
  std::size_t depth_ = 0;
  std::size_t matched_ = 0;
  bool leads_in_ = false;   ///< the key that was read last is on the path, and not its end
  bool is_wanted_ = false;  ///< … is the path's end
  bool is_messages_ = false;
};

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> keys;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    if (dot == begin) {
      throw ConfigError(fmt::format(
          "--field {}: expected the name of a field, or names with dots between them: data.text",
          path));
    }
    keys.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return keys;
}

}  // namespace

JsonField::JsonField(const std::string& path) : path_(path), keys_(split(path)) {}

JsonField::Line JsonField::read(std::string_view line) const {
  FieldFinder finder(keys_);
  if (!Json::sax_parse(line.begin(), line.end(), &finder)) {
    return {.found = Found::kNoJson, .why = std::move(finder.syntax)};
  }
  if (!finder.is_object) {
    return {.found = Found::kNoObject, .why = "is JSON, but not an object"};
  }
  if (finder.has_text) {
    return {.found = Found::kText, .text = std::move(finder.text)};
  }
  if (finder.other_kind != nullptr) {
    return {.found = Found::kNoString,
            .why = fmt::format("field \"{}\" is {}, not a string", path_, finder.other_kind)};
  }
  if (finder.has_messages) {
    return {.found = Found::kConversation,
            .why = fmt::format("holds a conversation, \"messages\", and no field \"{}\": "
                               "conversations are read with --chat",
                               path_)};
  }
  return {.found = Found::kNoField,
          .why = finder.outer_keys.empty()
                     ? fmt::format("has no field \"{}\": it is empty", path_)
                     : fmt::format("has no field \"{}\"; there {} \"{}\"", path_,
                                   finder.outer_keys.size() == 1 ? "is" : "are",
                                   fmt::join(finder.outer_keys, "\", \""))};
}

}  // namespace dstrain
