#include "engine/config/key_check.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/config/did_you_mean.h"
#include "engine/config/lax_values.h"

namespace dstrain {
namespace {

/// Upper bounds that nobody reaches on purpose are mentioned only where they are exceeded.
std::string bounds_text(const NumberRange& range, double found) {
  constexpr double kWorthSaying = 1e9;
  const bool has_low = std::isfinite(range.low);
  const bool has_high =
      std::isfinite(range.high) && (range.high < kWorthSaying || found > range.high);
  if (has_low && has_high) {
    return fmt::format(" in {}{}, {}{}", range.low_open ? '(' : '[', range.low, range.high,
                       range.high_open ? ')' : ']');
  }
  if (has_low && range.low_open) return fmt::format(" greater than {}", range.low);
  if (has_low) return fmt::format(" of at least {}", range.low);
  return "";
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool last = i + 1 == names.size();
    list += (i == 0 ? "" : last ? " or " : ", ") + json_quote(names[i]);
  }
  return list;
}

std::string expectation(const Key& key, double found = 0.0) {
  switch (key.kind) {
    case KeyKind::kBool:
      return "true or false";
    case KeyKind::kInteger:
      return "an integer" + bounds_text(key.range, found);
    case KeyKind::kNumber:
      return "a number" + bounds_text(key.range, found);
    case KeyKind::kString:
      return key.choices.empty() ? "a string" : quoted_list(key.choices);
    case KeyKind::kAny:
      return "a value";
  }
  return "a value";
}

bool has_type(const Key& key, const JsonNode& node) {
  switch (key.kind) {
    case KeyKind::kBool:
      return node.is(JsonNode::Kind::kBool);
    case KeyKind::kInteger:
      return node.is(JsonNode::Kind::kNumber) && node.integer.has_value();
    case KeyKind::kNumber:
      return node.is(JsonNode::Kind::kNumber) && std::isfinite(node.number);
    case KeyKind::kString:
      return node.is(JsonNode::Kind::kString);
    case KeyKind::kAny:
      return true;
  }
  return true;
}

bool in_range(const NumberRange& range, double value) {
  const bool above_low = range.low_open ? value > range.low : value >= range.low;
  const bool below_high = range.high_open ? value < range.high : value <= range.high;
  return above_low && below_high;
}

/// Whether a block is switched on: anything in it says "enabled": true, or it is not empty and
/// nothing in it says "enabled" at all.
struct EnabledSearch {
  bool on = false;
  bool mentioned = false;
  void visit(const JsonNode& node) {
    for (const JsonMember& member : node.members) {
      if (member.key == "enabled") {
        mentioned = true;
        on = on || truth_meant(member.value).value_or(true);
      }
      visit(member.value);
    }
  }
};

bool is_switched_off(const JsonNode& block) {
  if (block.is(JsonNode::Kind::kBool)) return !block.boolean;
  if (!block.is(JsonNode::Kind::kObject)) return false;
  EnabledSearch search;
  search.visit(block);
  return block.members.empty() || (search.mentioned && !search.on);
}

[[noreturn]] void throw_wrong_value(const Key& key, const JsonNode& node) {
  std::string message =
      fmt::format("must be {}, found {}", expectation(key, node.number), node.describe());
  if (node.is(JsonNode::Kind::kString)) {
    if (const auto near = nearest_name(node.text, key.choices, typing_error_limit(node.text))) {
      message += fmt::format("; did you mean \"{}\"?", *near);
    }
  }
  if (!key.note.empty()) message += fmt::format(" ({})", key.note);
  throw_config_error(node.where, key.path, message);
}

}  // namespace

bool is_as_if_absent(const Key& key, const JsonNode& node) {
  if (node.is(JsonNode::Kind::kNull)) return key.null_is_absent;
  return node.is_text("auto") && key.auto_rule == AutoRule::kDefault && key.auto_value.empty();
}

bool is_accepted_value(const Key& key, const JsonNode& node) {
  if (key.enabled_block) return is_switched_off(node);
  // A switch may be written as a string or a number.
  const std::optional<bool> on = truth_meant(node);
  const std::string truth = !on ? "" : *on ? "true" : "false";
  return std::any_of(key.accepted.begin(), key.accepted.end(), [&](const std::string& accepted) {
    // strings in any letter case, as DeepSpeed does
    return accepted == truth || accepted == node.text || edit_distance(node.dump(), accepted) == 0;
  });
}

void check_value(const Key& key, const JsonNode& node) {
  if (key.status == KeyStatus::kRefused) {
    if (is_accepted_value(key, node)) return;
    const bool brief = !node.is(JsonNode::Kind::kObject) && !node.is(JsonNode::Kind::kArray);
    throw_config_error(node.where, key.path,
                       brief ? fmt::format("{} is refused: {}", node.dump(), key.note)
                             : fmt::format("refused: {}", key.note));
  }
  if (node.is_text("auto")) {
    if (key.auto_rule == AutoRule::kValue) return;
    throw_config_error(node.where, key.path,
                       fmt::format("\"auto\" stands for an argument of Hugging Face's Trainer, "
                                   "which does not exist here: write {}",
                                   expectation(key)));
  }
  if (!has_type(key, node)) throw_wrong_value(key, node);
  if (node.is(JsonNode::Kind::kNumber) && !in_range(key.range, node.number)) {
    throw_wrong_value(key, node);
  }
  const bool choice_fits = key.choices.empty() || std::find(key.choices.begin(), key.choices.end(),
                                                            node.text) != key.choices.end();
  if (!choice_fits) throw_wrong_value(key, node);
}

}  // namespace dstrain
