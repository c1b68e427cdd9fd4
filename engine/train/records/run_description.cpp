#include "engine/train/records/run_description.h"

#include "engine/config/config_json.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

void add_values(const Json& block,
                const std::string& path,
                std::vector<std::pair<std::string, Json>>& values) {
  for (const auto& [key, value] : block.items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    if (value.is_object()) {
      add_values(value, name, values);
    } else if (!value.is_array()) {
      values.emplace_back(name, value);
    }
  }
}

}  // namespace

std::string run_name(const std::filesystem::path& output_dir) {
  const std::filesystem::path folder = std::filesystem::absolute(output_dir).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename();
}

RunDescription describe_run(const LoadedConfig& loaded) {
  RunDescription run{.name = run_name(loaded.config.training.output_dir),
                     .config = Json::parse(to_json(loaded))};
  run.config.erase("_notes");
  return run;
}

std::vector<std::pair<std::string, Json>> hyperparameters(const Json& config) {
  std::vector<std::pair<std::string, Json>> values;
  add_values(config, "", values);
  return values;
}

}  // namespace dstrain
