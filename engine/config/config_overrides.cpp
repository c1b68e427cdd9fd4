#include "engine/config/config_overrides.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "engine/config/config_keys.h"
#include "engine/config/unknown_keys.h"

namespace dstrain {
namespace {

struct Override {
  std::string path;
  JsonNode value;
};

/// The argument as errors show it: on one line, cut where it gets long.
std::string override_label(std::string text) {
  constexpr std::size_t kLongest = 80;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return kOverridePrefix + text;
}

Override parse_override(const std::string& text) {
  const std::string where = override_label(text);
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw_config_error(where, "", "expected path=value, for example optimizer.params.lr=1e-4");
  }
  const std::string raw = text.substr(equals + 1);
  std::optional<JsonNode> value = parse_json_value(raw, where);
  if (!value && (raw.starts_with('{') || raw.starts_with('[') || raw.starts_with('"'))) {
    throw_config_error(
        where, "", "the value begins like JSON but is not valid JSON: check quotes and brackets");
  }
  if (!value) {
    value = json_node(JsonNode::Kind::kString);
    value->text = raw;
  }
  value->where = where;
  return {.path = text.substr(0, equals), .value = *value};
}

/// The element of that index; an index one past the last adds an element at the end.
JsonNode& list_element(JsonNode& list,
                       std::string_view name,
                       const std::string& where,
                       const std::string& path) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool number = error == std::errc() && end == name.data() + name.size();
  if (!number || index > list.items.size()) {
    throw_config_error(where, path,
                       fmt::format("a list of {}: expected an index from 0 to {}, "
                                   "found \"{}\"",
                                   list.items.size(), list.items.size(), name));
  }
  if (index == list.items.size()) list.items.emplace_back().where = where;
  return list.items[index];
}

JsonNode& descend(JsonNode& parent,
                  std::string_view name,
                  const std::string& where,
                  const std::string& path) {
  if (parent.is(JsonNode::Kind::kArray)) return list_element(parent, name, where, path);
  if (parent.is(JsonNode::Kind::kNull)) parent.kind = JsonNode::Kind::kObject;
  if (!parent.is(JsonNode::Kind::kObject)) {
    throw_config_error(
        where, path,
        fmt::format("is {} ({}), which has no \"{}\"", parent.describe(), parent.where, name));
  }
  if (JsonNode* child = parent.find(name)) return *child;
  parent.members.push_back({.key = std::string(name), .where = where, .value = {}});
  parent.members.back().value.where = where;
  return parent.members.back().value;
}

/// Removes the key at `path`. Returns false if there is no such key, unless its name is known.
bool take_away(JsonNode& root, const std::string& path) {
  const std::size_t dot = path.rfind('.');
  JsonNode* const block = dot == std::string::npos
                              ? &root
                              : const_cast<JsonNode*>(find_path(root, path.substr(0, dot)));
  const std::string name = path.substr(dot == std::string::npos ? 0 : dot + 1);
  if (block == nullptr || !block->is(JsonNode::Kind::kObject)) return is_known_path(path);
  return std::erase_if(block->members,
                       [&](const JsonMember& member) { return member.key == name; }) > 0 ||
         is_known_path(path);
}

bool null_is_value(const std::string& path) {
  return std::any_of(all_keys().begin(), all_keys().end(),
                     [&](const Key& key) { return key.path == path && key.null_is_value; });
}

void apply(JsonNode& root, const Override& change) {
  const bool takes_away = change.value.is(JsonNode::Kind::kNull) && !null_is_value(change.path);
  if (takes_away && take_away(root, change.path)) return;
  put_value(root, change.path, change.value);
}

}  // namespace

void put_value(JsonNode& root, const std::string& path, const JsonNode& value) {
  JsonNode* node = &root;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    node = &descend(*node, std::string_view(path).substr(begin, dot - begin), value.where,
                    path.substr(0, begin == 0 ? 0 : begin - 1));
    begin = dot + 1;
  }
  *node = value;
}

ConfigEdit edit_of_override(const std::string& text) {
  const Override change = parse_override(text);
  const bool takes_away = change.value.is(JsonNode::Kind::kNull) && !null_is_value(change.path);
  return {.kind = takes_away ? ConfigEdit::Kind::kRemove : ConfigEdit::Kind::kSet,
          .path = change.path,
          .value = takes_away ? "" : change.value.dump()};
}

void apply_overrides(JsonNode& root,
                     const std::vector<std::string>& overrides,
                     Weights weights,
                     ConfigProblems& problems) {
  std::vector<Override> changes;
  for (const std::string& text : overrides) {
    problems.attempt([&] { changes.push_back(parse_override(text)); });
  }
  for (const Override& change : changes) {
    if (change.path == "model") problems.attempt([&] { apply(root, change); });
  }
  problems.attempt([&] { expand_model_folder(root, weights); });
  for (const Override& change : changes) {
    if (change.path != "model" && !problems.spoil(change.path)) {
      problems.attempt([&] { apply(root, change); });
    }
  }
}

}  // namespace dstrain
