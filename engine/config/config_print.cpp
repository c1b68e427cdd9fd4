// The config on its way out: values with their origins, and JSON that can be run again.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_keys.h"
#include "engine/config/config_values.h"

namespace dstrain {
namespace {

void put(nlohmann::ordered_json& root, const std::string& path, const std::string& value) {
  nlohmann::ordered_json* node = &root;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    node = &(*node)[path.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  *node = nlohmann::ordered_json::parse(value);
}

}  // namespace

std::vector<ConfigValue> list_values(const Config& config,
                                     const std::map<std::string, std::string>& origins) {
  std::vector<ConfigValue> values;
  for (const Key& key : all_keys()) {
    if (!key.get || !key.applies_in(config)) continue;
    const std::string value = key.get(config);
    if (value.empty()) continue;
    const auto origin = origins.find(key.path);
    values.push_back({.path = key.path,
                      .value = value,
                      .origin = origin == origins.end() ? key.default_origin : origin->second});
  }
  return values;
}

std::string to_json(const LoadedConfig& loaded) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  auto notes = nlohmann::ordered_json::array();
  for (const ConfigValue& value : loaded.values) {
    put(root, value.path, value.value);
    if (value.origin.find("DeepSpeed") != std::string::npos) {
      notes.push_back(fmt::format("{}: {}", value.path, value.origin));
    }
  }
  if (!notes.empty()) root["_notes"] = notes;
  return root.dump(2) + "\n";
}

std::string describe_origins(const LoadedConfig& loaded) {
  std::size_t path_width = 0;
  std::size_t value_width = 0;
  for (const ConfigValue& value : loaded.values) {
    path_width = std::max(path_width, value.path.size());
    value_width = std::max(value_width, std::min<std::size_t>(value.value.size(), 32));
  }
  std::string text;
  for (const ConfigValue& value : loaded.values) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", value.path, path_width, value.value, value_width,
                        value.origin);
  }
  return text;
}

}  // namespace dstrain
