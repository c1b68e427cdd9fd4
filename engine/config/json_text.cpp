#include "engine/config/json_text.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dstrain {

JsonNode json_node(JsonNode::Kind kind) {
  JsonNode node;
  node.kind = kind;
  return node;
}

JsonNode json_number(double value) {
  constexpr double kBeyondIntegers = 0x1p63;
  JsonNode node = json_node(JsonNode::Kind::kNumber);
  node.number = value;
  if (std::trunc(value) == value && value >= -kBeyondIntegers && value < kBeyondIntegers) {
    node.integer = static_cast<std::int64_t>(value);
  }
  return node;
}

const JsonNode* JsonNode::find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

JsonNode* JsonNode::find(std::string_view key) {
  return const_cast<JsonNode*>(std::as_const(*this).find(key));
}

std::string JsonNode::dump() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kNumber:
      if (integer) return fmt::format("{}", *integer);
      if (std::isnan(number)) return "NaN";
      if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
      return fmt::format("{}", number);
    case Kind::kString:
      return json_quote(text);
    case Kind::kArray: {
      std::string list;
      for (const JsonNode& item : items) {
        list += (list.empty() ? "" : ", ") + item.dump();
      }
      return "[" + list + "]";
    }
    case Kind::kObject: {
      std::string list;
      for (const JsonMember& member : members) {
        list += (list.empty() ? "" : ", ") + json_quote(member.key) + ": " + member.value.dump();
      }
      return "{" + list + "}";
    }
  }
  return "null";
}

std::string JsonNode::describe() const {
  switch (kind) {
    case Kind::kString:
      return "the string " + json_quote(text);
    case Kind::kArray:
      return "a list";
    case Kind::kObject:
      return "an object";
    default:
      return dump();
  }
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void throw_config_error(std::string_view where,
                        std::string_view path,
                        std::string_view message,
                        std::vector<ConfigEdit> mend) {
  throw ConfigError(ConfigProblem{.where = std::string(where),
                                  .path = std::string(path),
                                  .message = std::string(message),
                                  .mend = std::move(mend)});
}

}  // namespace dstrain
