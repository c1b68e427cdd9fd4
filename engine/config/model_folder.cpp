#include "engine/config/model_folder.h"

#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

enum class Holds : std::uint8_t { kNothing, kSafetensors, kPickle };

Holds weights_in(const fs::path& folder) {
  Holds holds = Holds::kNothing;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) return Holds::kSafetensors;
    if (name.starts_with("pytorch_model")) holds = Holds::kPickle;
  }
  return holds;
}

/// The resolved config that a checkpoint's manifest carries as text. The rest, which is nearly all
/// of it and describes tensors and files, is skipped; its checksum is verified when the weights are
/// read.
std::string config_text(const fs::path& manifest,
                        const std::string& key,
                        const std::string& where) {
  using nlohmann::json;
  const json document = json::parse(
      read_regular_file(manifest.string()).text,
      [](int depth, json::parse_event_t event, json& value) {
        return depth != 1 || event != json::parse_event_t::key ||
               (value != "tensors" && value != "files");
      },
      /*allow_exceptions=*/false);
  const auto config = document.is_object() ? document.find("config") : document.end();
  if (document.is_discarded() || config == document.end() || !config->is_string()) {
    throw_config_error(where, key,
                       fmt::format("{} is not the manifest of a dstrain checkpoint",
                                   json_quote(manifest.string())));
  }
  return config->get<std::string>();
}

JsonNode model_of_checkpoint(const fs::path& manifest,
                             const std::string& key,
                             const std::string& where) {
  const JsonNode config = parse_json_document(config_text(manifest, key, where), manifest.string());
  const JsonNode* model = config.find("model");
  if (model == nullptr) {
    throw_config_error(where, key,
                       fmt::format("the checkpoint {} does not say which model it is of",
                                   json_quote(manifest.parent_path().string())));
  }
  return *model;
}

[[noreturn]] void refuse_folder(const JsonNode& model,
                                const std::string& key,
                                const fs::path& folder) {
  std::string what = fmt::format("the folder {} holds no config.json", json_quote(model.text));
  std::string newest;
  const fs::path pointer =
      is_there(folder / "checkpoints") ? folder / "checkpoints" / "latest" : folder / "latest";
  if (std::istringstream(read_regular_file(pointer.string()).text) >> newest &&
      is_there(pointer.parent_path() / newest)) {
    what += fmt::format(", but a run's checkpoints: name one of them, such as {}",
                        json_quote((pointer.parent_path() / newest).string()));
  }
  throw_config_error(model.where, key, what);
}

void start_from(JsonNode& model, const std::string& folder, const std::string& where) {
  const std::string key = "initial_weights";
  if (model.find(key) == nullptr) {
    model.members.push_back({.key = key, .where = where, .value = {}});
  }
  JsonNode path = json_node(JsonNode::Kind::kString);
  path.text = folder;
  path.where = where;
  *model.find(key) = path;
}

}  // namespace

JsonNode read_model_folder(const JsonNode& path, const std::string& key) {
  const fs::path folder = path.text;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw_config_error(path.where, key,
                       fmt::format("there is no folder {}; expected the keys of a Hugging Face "
                                   "config.json, or a folder that holds one",
                                   json_quote(path.text)));
  }
  if (is_there(folder / "manifest.json")) {
    return model_of_checkpoint(folder / "manifest.json", key, path.where);
  }
  if (!is_there(folder / "config.json")) refuse_folder(path, key, folder);
  return read_json_file((folder / "config.json").string());
}

void expand_model_folder(JsonNode& root, Weights weights) {
  JsonNode* model = root.find("model");
  if (model == nullptr || !model->is(JsonNode::Kind::kString)) return;
  const fs::path folder = model->text;
  const std::string where = model->where;
  JsonNode described = read_model_folder(*model, "model");
  const Holds holds = weights_in(folder);
  if (weights == Weights::kStartFrom && holds == Holds::kPickle) {
    throw_config_error(
        where, "model",
        fmt::format("the folder {} holds weights in PyTorch's pickle format, which are not read: "
                    "save them as safetensors, or, to train from scratch, copy its config.json to "
                    "a folder of its own",
                    json_quote(model->text)));
  }
  const std::string name = model->text;
  *model = std::move(described);
  if (weights == Weights::kStartFrom && holds == Holds::kSafetensors) {
    start_from(*model, name, where);
  }
}

}  // namespace dstrain
