#include "engine/config/config_schema.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/config/config_keys.h"
#include "engine/config/value_schema.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

/// The keys that is_comment_key() accepts.
constexpr const char* kCommentKeyPattern = "^(_|//|#|[cC][oO][mM][mM][eE][nN][tT]|$)";

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    parts.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return parts;
}

std::vector<std::string> names_of(const Key& key) {
  std::vector<std::string> names = {key.path};
  names.insert(names.end(), key.aliases.begin(), key.aliases.end());
  return names;
}

Json block_schema() {
  return {{"type", Json::array({"object", "null", "string"})},
          {"pattern", "^auto$"},
          {"properties", Json::object()},
          {"patternProperties", {{kCommentKeyPattern, true}}},
          {"additionalProperties", false}};
}

/// `schema` for the value at a path, wherever the blocks on the way are objects.
Json at_path(const std::string& path, Json schema) {
  const std::vector<std::string> parts = parts_of(path);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part)
    schema = {{"properties", {{*part, std::move(schema)}}}};
  return schema;
}

/// Requires the path to be present, and the blocks on the way with it.
Json has_path(const std::string& path) {
  const std::vector<std::string> parts = parts_of(path);
  Json schema;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    Json outer = {{"type", "object"}, {"required", Json::array({*part})}};
    if (!schema.is_null()) outer["properties"] = {{*part, std::move(schema)}};
    schema = std::move(outer);
  }
  return schema;
}

/// A value of a key that decides which others of its block apply.
struct Decision {
  std::string path;
  Json test;      ///< of the value
  Config config;  ///< that comes of it
};

class SchemaBuilder {
 public:
  Json build() {
    root_ = block_schema();
    root_["type"] = "object";
    root_.erase("pattern");
    for (const Key& key : all_keys())
      for (const std::string& path : names_of(key))
        by_path_[path].push_back({&key, path});
    // Blocks that have a short form get it once they are whole.
    for (const Key& key : all_keys())
      for (const std::string& path : names_of(key))
        if (path != "zero_optimization") add_property(path);
    add_blocks_in_short_form();
    add_requirements();
    for (const Decision& decision : decisions())
      add_decision(decision);
    return finished();
  }

 private:
  struct Variant {
    const Key* key;
    std::string path;
  };

  static std::vector<Decision> decisions() {
    std::vector<Decision> all;
    for (const Key& key : all_keys()) {
      for (const char* path :
           {"model.model_type", "optimizer.type", "scheduler.type", "gradient_compression.kind"}) {
        if (key.path != path) continue;
        for (const std::string& value : key.choices.empty() ? key.names_in_any_case : key.choices)
          all.push_back({path, text_in_any_case(value), config_with(key, value)});
      }
    }
    Config config;
    config.fp8.enabled = true;
    all.push_back({"fp8.enabled", truth_schema(true), config});
    config.zero.stage = 3;
    all.push_back({"zero_optimization.stage", {{"const", 3}}, config});
    config.recompute.granularity = RecomputeGranularity::kFull;
    all.push_back({"activation_checkpointing.granularity",
                   {{"enum", Json::array({"selective", "full"})}},
                   config});
    config.precision = Precision::kF16;  // with a dynamic scale, whose keys all count
    all.push_back({"fp16.enabled", truth_schema(true), config});
    return all;
  }

  /// The object schema of a block, which is created where it is missing.
  Json& block(const std::vector<std::string>& parts) {
    Json* node = &root_;
    for (const std::string& part : parts) {
      Json& next = (*node)["properties"][part];
      if (next.is_null()) next = block_schema();
      node = &next;
    }
    return *node;
  }

  static Json schema_of(const Variant& variant) {
    Json schema = value_schema(*variant.key);
    const auto unset = variant.key->unset_by.find(variant.path);
    if (unset == variant.key->unset_by.end()) return schema;
    return any_of({schema, {{"const", Json::parse(unset->second)}}});
  }

  /// Adds the property of a key, with the values of all its variants, whichever applies.
  void add_property(const std::string& path) {
    std::vector<std::string> parts = parts_of(path);
    const std::string name = parts.back();
    parts.pop_back();
    Json& properties = block(parts)["properties"];
    if (properties.contains(name)) return;
    std::vector<Json> values;
    std::string description;
    for (const Variant& variant : by_path_[path]) {
      values.push_back(schema_of(variant));
      const std::string line = description_of(*variant.key);
      if (!line.empty()) description += (description.empty() ? "" : "\n") + line;
    }
    Json schema = any_of(values);
    if (schema.is_boolean()) {
      schema = schema.get<bool>() ? Json::object() : Json{{"not", Json::object()}};
    }
    if (!description.empty()) schema["description"] = description;
    add_default(path, schema);
    properties[name] = std::move(schema);
  }

  /// Only keys that every run has get a default; those of models and of kinds of optimizers depend
  /// on other keys.
  void add_default(const std::string& path, Json& schema) {
    const std::vector<Variant>& variants = by_path_[path];
    const Key& key = *variants.front().key;
    const bool plain = variants.size() == 1 && !key.applies && key.missing.empty() &&
                       key.status == KeyStatus::kHonoured && key.get;
    if (!plain || path != key.path || path.starts_with("model.")) return;
    const std::string value = key.get(Config{});
    if (!value.empty() && value != "\"\"") schema["default"] = Json::parse(value);
  }

  /// "zero_optimization": false, and "model": "folder".
  void add_blocks_in_short_form() {
    Json& properties = root_["properties"];
    for (const Key& key : all_keys()) {
      if (key.path.find('.') == std::string::npos && properties[key.path].contains("properties")) {
        properties[key.path] = any_of({properties[key.path], value_schema(key)});
      }
    }
    const Json folder = {{"type", "string"},
                         {"minLength", 1},
                         {"description", "A folder that holds a Hugging Face config.json"}};
    properties["model"] = any_of({properties["model"], folder});
  }

  void add_requirements() {
    Json conditions = Json::array();
    for (const Key& key : all_keys())
      if (!key.missing.empty() && !key.applies) conditions.push_back(required(key));
    root_["allOf"] = conditions;
  }

  /// Requires the key under any of its names; requires nothing of a model in a folder.
  static Json required(const Key& key) {
    std::vector<Json> places;
    for (const std::string& path : names_of(key))
      places.push_back(has_path(path));
    if (key.path.starts_with("model.")) {
      places.push_back({{"required", Json::array({"model"})},
                        {"properties", {{"model", {{"type", "string"}}}}}});
    }
    return any_of(places);
  }

  /// Adds the effect of a decision on the other keys of its block.
  void add_decision(const Decision& decision) {
    const std::string block = decision.path.substr(0, decision.path.find('.'));
    Json consequences = Json::array();
    for (const auto& [path, variants] : by_path_) {
      const bool conditional = std::any_of(
          variants.begin(), variants.end(),
          [](const Variant& variant) { return static_cast<bool>(variant.key->applies); });
      if (!conditional || !path.starts_with(block + ".")) continue;
      std::vector<Json> values;
      for (const Variant& variant : variants)
        if (variant.key->applies_in(decision.config)) values.push_back(schema_of(variant));
      if (values.empty()) values.push_back({{"enum", Json::array({nullptr, "auto"})}});
      consequences.push_back(at_path(path, any_of(values)));
    }
    for (const Key& key : all_keys()) {
      const bool needed = !key.missing.empty() && key.applies && key.applies(decision.config);
      if (needed && key.path.starts_with(block + ".")) consequences.push_back(required(key));
    }
    Json is_so = has_path(decision.path);
    is_so["properties"][block]["properties"] = {
        {decision.path.substr(block.size() + 1), decision.test}};
    root_["allOf"].push_back(
        {{"if", std::move(is_so)}, {"then", {{"allOf", std::move(consequences)}}}});
  }

  static Config config_with(const Key& key, const std::string& value) {
    ConfigDraft draft;
    JsonNode node = json_node(JsonNode::Kind::kString);
    node.text = value;
    key.set(draft, node);
    return draft.config;
  }

  Json finished() {
    Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                   {"title", "A run of dstrain"},
                   {"definitions", definitions()}};
    schema.update(root_);
    return schema;
  }

  static Json definitions() {
    const Json nothing = {{"$ref", "#/definitions/nothing_enabled"}};
    const Json mention = {{"$ref", "#/definitions/mentions_enabled"}};
    return {
        {"nothing_enabled",
         {{"properties", {{"enabled", truth_schema(false)}}}, {"additionalProperties", nothing}}},
        {"mentions_enabled",
         {{"type", "object"},
          {"anyOf", Json::array({{{"required", Json::array({"enabled"})}},
                                 {{"not", {{"additionalProperties", {{"not", mention}}}}}}})}}}};
  }

  Json root_;
  std::map<std::string, std::vector<Variant>> by_path_;
};

}  // namespace

std::string config_schema() {
  constexpr int kIndent = 1;
  return SchemaBuilder().build().dump(kIndent) + "\n";
}

}  // namespace dstrain
