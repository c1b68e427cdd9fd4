#include "engine/config/lax_values.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <system_error>

#include "engine/config/did_you_mean.h"

namespace dstrain {
namespace {

bool is_one_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return edit_distance(text, word) == 0; });
}

template <typename T>
std::optional<T> whole_text_as(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<JsonNode> number_in(const JsonNode& node) {
  if (node.is(JsonNode::Kind::kNumber)) return node;
  if (!node.is(JsonNode::Kind::kString)) return std::nullopt;
  const std::string_view text = trimmed(node.text);
  const auto value = whole_text_as<double>(text);
  if (!value) return std::nullopt;
  JsonNode number = json_number(*value);
  if (const auto integer = whole_text_as<std::int64_t>(text)) number.integer = integer;
  number.where = node.where;
  return number;
}

/// For counts whose range has no real upper limit: a number beyond the range, or Infinity, becomes
/// the largest.
JsonNode clamped(JsonNode number, const NumberRange& range) {
  constexpr double kNoLimitMeant = 1e15;
  if (number.integer || !(number.number > range.high) || range.high < kNoLimitMeant) return number;
  JsonNode largest = json_number(range.high);
  largest.integer = largest.integer.value_or(std::numeric_limits<std::int64_t>::max());
  largest.where = number.where;
  return largest;
}

}  // namespace

std::optional<bool> truth_meant(const JsonNode& node) {
  if (node.is(JsonNode::Kind::kBool)) return node.boolean;
  if (node.is(JsonNode::Kind::kNumber) && (node.integer == 0 || node.integer == 1)) {
    return node.integer == 1;
  }
  if (node.is(JsonNode::Kind::kString)) {
    if (is_one_of(node.text, {"true", "t", "yes", "y", "on", "1"})) return true;
    if (is_one_of(node.text, {"false", "f", "no", "n", "off", "0"})) return false;
  }
  return std::nullopt;
}

std::optional<double> number_meant(const JsonNode& node) {
  const auto number = number_in(node);
  return number ? std::optional(number->number) : std::nullopt;
}

JsonNode value_meant(const Key& key, const JsonNode& written) {
  if (written.is_text("auto")) {
    return key.auto_value.empty() ? written : *parse_json_value(key.auto_value, written.where);
  }
  if (const auto same = key.synonyms.find(written.text); same != key.synonyms.end()) {
    JsonNode node = written;
    node.text = same->second;
    return node;
  }
  if (key.kind == KeyKind::kBool) {
    if (const auto truth = truth_meant(written)) {
      JsonNode node = json_node(JsonNode::Kind::kBool);
      node.boolean = *truth;
      node.where = written.where;
      return node;
    }
  }
  if (key.kind == KeyKind::kInteger || key.kind == KeyKind::kNumber) {
    if (const auto number = number_in(written)) {
      return key.kind == KeyKind::kInteger ? clamped(*number, key.range) : *number;
    }
  }
  return written;
}

}  // namespace dstrain
