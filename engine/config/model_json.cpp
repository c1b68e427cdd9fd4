#include "engine/config/model_json.h"

#include <nlohmann/json.hpp>

#include "engine/config/config_overrides.h"
#include "engine/config/config_values.h"
#include "engine/config/model_config_file.h"
#include "engine/config/model_folder.h"

namespace dstrain {
namespace {

// A model by itself gets sequences of one position, for which no attention window can be too short.
ModelSpec spec_of(JsonNode model, const std::string& file) {
  ConfigTree tree{.file = file, .root = json_node(JsonNode::Kind::kObject), .is_model = true};
  tree.root.where = file;
  tree.root.members.push_back({.key = "model", .where = file, .value = std::move(model)});
  put_value(tree.root, "data.sequence_length", parse_json_value("1", file).value());
  ConfigProblems problems;
  const LoadedConfig loaded =
      load_config_tree(std::move(tree), {.accept_model_config = true}, problems);
  problems.throw_if_any(file);
  return loaded.config.model;
}

}  // namespace

ModelSpec load_model_spec(const std::string& path) {
  ConfigProblems problems;
  const ConfigTree tree = read_config_tree(path, {.accept_model_config = true}, problems);
  problems.throw_if_any(tree.file);
  const JsonNode* model = tree.root.find("model");
  if (!tree.is_model || model == nullptr) {
    throw_config_error(tree.file, "",
                       "describes a run; expected a Hugging Face model's folder or config.json");
  }
  return spec_of(*model, tree.file);
}

ModelSpec model_spec_in(const JsonNode& path, const std::string& key) {
  return spec_of(read_model_folder(path, key), path.text);
}

ModelSpec parse_model_spec(std::string_view run_config, const std::string& where) {
  const JsonNode root = parse_json_document(run_config, where);
  const JsonNode* model = root.find("model");
  if (model == nullptr || !model->is(JsonNode::Kind::kObject)) {
    throw_config_error(where, "model", "missing: this config does not say which model it is of");
  }
  return spec_of(*model, where);
}

AdapterConfig parse_adapters(std::string_view run_config, const std::string& where) {
  AdapterConfig adapters;
  const JsonNode root = parse_json_document(run_config, where);
  const JsonNode* const peft = root.find("peft");
  const JsonNode* const targets = peft == nullptr ? nullptr : peft->find("target_modules");
  if (targets == nullptr) return adapters;
  for (const JsonNode& target : targets->items) {
    adapters.target_modules.push_back(target.text);
  }
  if (const JsonNode* rank = peft->find("r")) adapters.rank = rank->integer.value_or(0);
  if (const JsonNode* alpha = peft->find("lora_alpha")) adapters.alpha = alpha->number;
  if (const JsonNode* stabilised = peft->find("use_rslora")) {
    adapters.rank_stabilised = stabilised->boolean;
  }
  if (const JsonNode* magnitudes = peft->find("use_dora")) {
    adapters.magnitudes = magnitudes->boolean;
  }
  if (const JsonNode* saved = peft->find("modules_to_save")) {
    for (const JsonNode& module : saved->items) {
      adapters.modules_to_save.push_back(module.text);
    }
  }
  return adapters;
}

std::string parse_initial_weights(std::string_view run_config, const std::string& where) {
  const JsonNode root = parse_json_document(run_config, where);
  const JsonNode* const model = root.find("model");
  const JsonNode* const weights = model == nullptr ? nullptr : model->find("initial_weights");
  return weights == nullptr ? "" : weights->text;
}

std::string model_json(const ModelSpec& model) {
  constexpr std::string_view kBlock = "model.";
  Config config;
  config.model = model;
  auto json = nlohmann::ordered_json::object();
  for (const ConfigValue& value : list_values(config, {})) {
    if (value.path.starts_with(kBlock)) {
      json[value.path.substr(kBlock.size())] = nlohmann::ordered_json::parse(value.value);
    }
  }
  return json.dump(2);
}

}  // namespace dstrain
