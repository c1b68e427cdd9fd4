// JSON and the values of templates.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "engine/jinja/value.h"

namespace dstrain::jinja {

[[nodiscard]] Value from_json(const nlohmann::ordered_json& json);

/// How Python's json.dumps writes; characters that are not ASCII stay as they are.
struct JsonStyle {
  std::optional<std::string> indent{};  ///< of a level; absent: all in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sorts_keys = false;
};
/// Throws TemplateError for what is no JSON: undefined values, functions.
[[nodiscard]] std::string to_json(const Value& value, const JsonStyle& style = {});

}  // namespace dstrain::jinja
