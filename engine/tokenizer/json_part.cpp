#include "engine/tokenizer/json_part.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostShown = 60;

std::string shown(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMostShown ? text : std::string(json.type_name());
}

/// The library's message has line, column and what it found, between internal names.
std::string plain_words(std::string_view message) {
  constexpr std::string_view kAt = "parse error at ";
  const std::size_t at = message.find(kAt);
  return std::string(at == std::string_view::npos ? message : message.substr(at + kAt.size()));
}

/// How deeply objects and lists are nested.
int nesting_of(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

JsonPart::JsonPart(const Json& json, std::string file) : json_(&json), file_(std::move(file)) {}

void JsonPart::fail(std::string_view message) const {
  throw ConfigError(fmt::format("{}: {}{}{}", file_, path_, path_.empty() ? "" : ": ", message));
}

bool JsonPart::is_null() const {
  return json_->is_null();
}

JsonPart JsonPart::operator[](std::string_view key) const {
  auto found = find(key);
  if (!found) {
    fail(fmt::format("\"{}\" is missing", key));
  }
  return std::move(*found);
}

std::optional<JsonPart> JsonPart::find(std::string_view key) const {
  if (!json_->is_object()) {
    fail(fmt::format("expected an object, found {}", shown(*json_)));
  }
  const auto member = json_->find(std::string(key));
  if (member == json_->end() || member->is_null()) {
    return std::nullopt;
  }
  JsonPart part(*member, file_);
  part.path_ = fmt::format("{}/{}", path_, key);
  return part;
}

std::vector<JsonPart> JsonPart::items() const {
  if (!json_->is_array()) {
    fail(fmt::format("expected a list, found {}", shown(*json_)));
  }
  std::vector<JsonPart> parts;
  parts.reserve(json_->size());
  for (const Json& item : *json_) {
    JsonPart part(item, file_);
    part.path_ = fmt::format("{}/{}", path_, parts.size());
    parts.push_back(std::move(part));
  }
  return parts;
}

const std::string& JsonPart::text() const {
  if (!json_->is_string()) {
    fail(fmt::format("expected a text, found {}", shown(*json_)));
  }
  return json_->get_ref<const std::string&>();
}

bool JsonPart::flag() const {
  if (!json_->is_boolean()) {
    fail(fmt::format("expected true or false, found {}", shown(*json_)));
  }
  return json_->get<bool>();
}

std::int64_t JsonPart::number(std::int64_t most) const {
  // An integer beyond int64_t is unsigned, and turns negative.
  const bool fits = json_->is_number_integer() && json_->get<std::int64_t>() >= 0 &&
                    json_->get<std::int64_t>() <= most;
  if (!fits) {
    fail(fmt::format("expected an integer from 0 to {}, found {}", most, shown(*json_)));
  }
  return json_->get<std::int64_t>();
}

std::string JsonPart::text_or(std::string_view key, std::string_view otherwise) const {
  const auto found = find(key);
  return found ? found->text() : std::string(otherwise);
}

bool JsonPart::flag_or(std::string_view key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->flag() : otherwise;
}

Json parse_foreign_json(std::string_view text, const std::string& file) {
  constexpr int kMostNesting = 64;
  if (nesting_of(text) > kMostNesting) {
    throw ConfigError(fmt::format(
        "{}: its values are nested deeper than {}, which no tokenizer needs", file, kMostNesting));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", file, plain_words(error.what())));
  }
}

}  // namespace dstrain
