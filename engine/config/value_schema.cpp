#include "engine/config/value_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53
  if (std::trunc(value) == value && std::abs(value) <= kLargestExactInteger) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

/// Matches what number_meant() reads; a pattern cannot check the range.
Json quoted_number() {
  return {{"type", "string"},
          {"pattern", "^[ \\t]*-?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?[ \\t]*$"}};
}

Json number_schema(const Key& key) {
  constexpr double kNoLimitMeant = 1e15;  // as in value_meant(), which takes more for the largest
  const NumberRange& range = key.range;
  const bool is_integer = key.kind == KeyKind::kInteger;
  Json schema = {{"type", is_integer ? "integer" : "number"}};
  if (std::isfinite(range.low)) {
    schema[range.low_open ? "exclusiveMinimum" : "minimum"] = number(range.low);
  }
  if (std::isfinite(range.high) && !(is_integer && range.high >= kNoLimitMeant)) {
    schema[range.high_open ? "exclusiveMaximum" : "maximum"] = number(range.high);
  } else if (is_integer && !std::isfinite(range.high)) {
    schema["maximum"] = std::numeric_limits<std::int64_t>::max();
  }
  return any_of({schema, quoted_number()});
}

Json text_schema(const Key& key) {
  if (!key.names_in_any_case.empty()) {
    std::vector<Json> names;
    for (const std::string& name : key.names_in_any_case)
      names.push_back(text_in_any_case(name));
    return any_of(names);
  }
  if (key.choices.empty()) return {{"type", "string"}};
  std::vector<std::string> choices = key.choices;
  for (const auto& [synonym, choice] : key.synonyms)
    choices.push_back(synonym);
  return {{"enum", choices}};
}

/// A feature is off if its block is false, {}, or says "enabled": false and nothing else about it
/// anywhere.
Json switched_off() {
  return any_of({{{"const", false}},
                 {{"type", "object"}, {"maxProperties", 0}},
                 {{"allOf", Json::array({{{"$ref", "#/definitions/nothing_enabled"}},
                                         {{"$ref", "#/definitions/mentions_enabled"}}})}}});
}

/// Accepts what is_accepted_value() does.
Json refused_schema(const Key& key) {
  if (key.enabled_block) return switched_off();
  std::vector<Json> accepted;
  for (const std::string& text : key.accepted) {
    const Json value = Json::parse(text);
    if (value.is_boolean()) {
      accepted.push_back(truth_schema(value.get<bool>()));
    } else if (value.is_string()) {
      accepted.push_back(text_in_any_case(value.get<std::string>()));
    } else {
      accepted.push_back({{"enum", Json::array({value, text})}});
    }
  }
  return any_of(accepted);
}

Json typed_schema(const Key& key) {
  if (!key.shape.empty()) return Json::parse(key.shape);
  switch (key.kind) {
    case KeyKind::kBool:
      return any_of({{{"type", "boolean"}}, truth_schema(true), truth_schema(false)});
    case KeyKind::kInteger:
    case KeyKind::kNumber:
      return number_schema(key);
    case KeyKind::kString:
      return text_schema(key);
    case KeyKind::kAny:
      return true;
  }
  return true;
}

}  // namespace

Json any_of(const std::vector<Json>& schemas) {
  std::vector<Json> distinct;
  for (const Json& schema : schemas) {
    if (schema == Json(true)) return true;
    const bool known = std::find(distinct.begin(), distinct.end(), schema) != distinct.end();
    if (schema != Json(false) && !known) distinct.push_back(schema);
  }
  if (distinct.empty()) return false;
  if (distinct.size() == 1) return distinct.front();
  return {{"anyOf", distinct}};
}

Json truth_schema(bool truth) {
  std::vector<Json> ways = {{{"const", truth}}, {{"const", truth ? 1 : 0}}};
  for (const char* word : truth ? std::array{"true", "t", "yes", "y", "on", "1"}
                                : std::array{"false", "f", "no", "n", "off", "0"})
    ways.push_back(text_in_any_case(word));
  return any_of(ways);
}

Json text_in_any_case(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool upper = c >= 'A' && c <= 'Z';
    if (lower || upper) {
      pattern += fmt::format("[{}{}]", static_cast<char>(upper ? c : c - 32),
                             static_cast<char>(upper ? c + 32 : c));
    } else if (c == '-' || c == '_') {
      pattern += "[-_]";
    } else {
      pattern += c >= '0' && c <= '9' ? std::string(1, c) : fmt::format("\\{}", c);
    }
  }
  return any_of({{{"const", text}}, {{"type", "string"}, {"pattern", "^" + pattern + "$"}}});
}

Json value_schema(const Key& key) {
  std::vector<Json> values = {key.status == KeyStatus::kRefused ? refused_schema(key)
                                                                : typed_schema(key)};
  const bool may_say_nothing = key.missing.empty();
  if (key.kind == KeyKind::kAny && values.front() == Json(true) &&
      key.status != KeyStatus::kRefused) {
    return true;
  }
  if (key.null_is_value || (key.null_is_absent && may_say_nothing)) {
    values.push_back({{"type", "null"}});
  }
  const bool takes_auto = key.auto_rule == AutoRule::kValue || !key.auto_value.empty() ||
                          (key.auto_rule == AutoRule::kDefault && may_say_nothing);
  if (takes_auto) values.push_back({{"const", "auto"}});
  const bool is_free_text = (key.kind == KeyKind::kString || key.kind == KeyKind::kAny) &&
                            key.choices.empty() && key.names_in_any_case.empty();
  if (takes_auto || !is_free_text || key.status == KeyStatus::kRefused) return any_of(values);
  return {{"allOf", Json::array({any_of(values), {{"not", {{"const", "auto"}}}}})}};
}

std::string description_of(const Key& key) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    if (!sentence.empty()) text += (text.empty() ? "" : " ") + sentence + ".";
  };
  switch (key.status) {
    case KeyStatus::kHonoured:
      add(key.note);
      break;
    case KeyStatus::kNoEffect:
      add("No effect: " + key.note);
      break;
    case KeyStatus::kRefused:
      add(key.accepted.empty()
              ? "Refused: " + key.note
              : fmt::format("Only {}: {}", fmt::join(key.accepted, " or "), key.note));
      break;
    case KeyStatus::kSilent:
      add("Not read");
      break;
  }
  if (!key.applies_to.empty()) add("For " + key.applies_to);
  if (!key.missing.empty()) add("Required: " + key.missing);
  return text;
}

}  // namespace dstrain
