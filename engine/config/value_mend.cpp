#include "engine/config/value_mend.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/config/did_you_mean.h"

namespace dstrain {
namespace {

/// The quoted text, if it is a value: "5", "1e-4", "True".
std::optional<JsonNode> without_quotes(const JsonNode& node) {
  if (!node.is(JsonNode::Kind::kString)) return std::nullopt;
  std::string text = node.text;
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '_'; }),
             text.end());
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  std::optional<JsonNode> value = parse_json_value(text, node.where);
  if (!value || (!value->is(JsonNode::Kind::kNumber) && !value->is(JsonNode::Kind::kBool))) {
    return std::nullopt;
  }
  return value;
}

JsonNode number_node(double value, const std::string& where) {
  JsonNode node = json_number(value);
  node.where = where;
  return node;
}

/// Moves numbers to the nearest bound that is a value itself, and integers to the nearest one.
void add_numbers(const Key& key, const JsonNode& wrong, std::vector<JsonNode>& values) {
  if (!wrong.is(JsonNode::Kind::kNumber) || !std::isfinite(wrong.number)) return;
  double value = wrong.number;
  if (key.kind == KeyKind::kInteger) value = std::round(value);
  if (value < key.range.low && !key.range.low_open) value = key.range.low;
  if (value > key.range.high && !key.range.high_open) value = key.range.high;
  values.push_back(number_node(value, wrong.where));
}

void add_switch(const JsonNode& wrong, std::vector<JsonNode>& values) {
  const bool is_switch = wrong.is(JsonNode::Kind::kNumber) && wrong.integer &&
                         (*wrong.integer == 0 || *wrong.integer == 1);
  if (!is_switch) return;
  JsonNode value = json_node(JsonNode::Kind::kBool);
  value.boolean = *wrong.integer == 1;
  value.where = wrong.where;
  values.push_back(value);
}

void add_choice(const Key& key, const JsonNode& wrong, std::vector<JsonNode>& values) {
  if (!wrong.is(JsonNode::Kind::kString)) return;
  const auto near = nearest_name(wrong.text, key.choices, typing_error_limit(wrong.text));
  if (!near) return;
  JsonNode value = json_node(JsonNode::Kind::kString);
  value.text = *near;
  value.where = wrong.where;
  values.push_back(value);
}

/// Adds the list with the quotes of each element removed.
void add_list(const JsonNode& wrong, std::vector<JsonNode>& values) {
  if (!wrong.is(JsonNode::Kind::kArray)) return;
  JsonNode list = wrong;
  for (JsonNode& item : list.items) {
    if (const auto freed = without_quotes(item)) item = *freed;
  }
  values.push_back(list);
}

}  // namespace

std::vector<JsonNode> nearby_values(const Key& key, const JsonNode& wrong) {
  std::vector<JsonNode> values;
  if (key.status == KeyStatus::kRefused) {
    for (const std::string& accepted : key.accepted)
      values.push_back(parse_json_value(accepted, wrong.where).value());
    return values;
  }
  add_choice(key, wrong, values);
  if (const auto freed = without_quotes(wrong)) {
    values.push_back(*freed);
    add_numbers(key, *freed, values);
    add_switch(*freed, values);
  }
  add_numbers(key, wrong, values);
  add_switch(wrong, values);
  add_list(wrong, values);
  return values;
}

}  // namespace dstrain
