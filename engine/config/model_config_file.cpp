#include "engine/config/model_config_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "engine/config/config_keys.h"
#include "engine/config/config_overrides.h"

namespace dstrain {
namespace {

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

/// The config.json of a folder, otherwise the path itself.
std::string file_to_read(const std::string& path, bool accept_model) {
  if (!is_folder(path)) return path;
  const std::filesystem::path inside = std::filesystem::path(path) / "config.json";
  std::error_code error;
  if (std::filesystem::exists(inside, error)) return inside.string();
  if (!accept_model) return path;  // as any folder: not a JSON file
  throw_config_error(path, "",
                     "is a folder without a config.json; expected a run's JSON file, or a Hugging "
                     "Face model's folder or config.json");
}

/// A run's file that lacks its "model" still has one of the other blocks.
bool describes_model_alone(const JsonNode& root) {
  const auto blocks = {"model",
                       "data",
                       "training",
                       "optimizer",
                       "zero_optimization",
                       "train_batch_size",
                       "train_micro_batch_size_per_gpu"};
  return root.find("model_type") != nullptr &&
         std::none_of(blocks.begin(), blocks.end(),
                      [&](const char* block) { return root.find(block) != nullptr; });
}

[[noreturn]] void refuse_model(const std::string& given, const std::string& file) {
  const std::filesystem::path parent = std::filesystem::path(file).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  throw_config_error(
      given, "",
      fmt::format("is a model's {}, which says nothing about data, batch and steps: write a run's "
                  "file with \"model\": {}, or estimate what the model takes with dstrain "
                  "estimate-memory",
                  given == file ? "config.json" : "folder", json_quote(folder)));
}

/// {"model": the document}
JsonNode run_around(JsonNode model, const std::string& file) {
  JsonNode run = json_node(JsonNode::Kind::kObject);
  run.members.push_back({.key = "model", .where = file, .value = std::move(model)});
  return run;
}

/// Whether the key has a value: it is neither absent nor open.
bool says(const JsonNode& root, const std::string& path) {
  const JsonNode* node = find_path(root, path);
  return node != nullptr && !node->is(JsonNode::Kind::kNull) && !node->is_text("auto");
}

std::int64_t positions_of(const JsonNode& root) {
  for (const char* path : {"model.max_position_embeddings", "model.n_positions", "model.seq_length",
                           "model.model_max_length"}) {
    const JsonNode* node = find_path(root, path);
    if (node != nullptr && node->integer.value_or(0) >= 1) return *node->integer;
  }
  return 0;
}

class StandIns {
 public:
  explicit StandIns(JsonNode& root) : root_(root) {}

  void put(const std::string& path, const std::string& json, const std::string& why) {
    put_value(root_, path, parse_json_value(json, "stand-in: " + why).value());
    list_ += fmt::format("{}{}={} ({})", list_.empty() ? "" : ", ", path, json, why);
  }
  [[nodiscard]] std::string list() const { return list_.empty() ? "none" : list_; }

 private:
  JsonNode& root_;
  std::string list_;
};

/// "auto" already means all of the model's positions.
void stand_in_for_sequence(const JsonNode& root, StandIns& stand_ins) {
  constexpr std::int64_t kUsual = 2048;
  const std::int64_t positions = positions_of(root);
  if (find_path(root, "data.sequence_length") != nullptr || positions == 0) return;
  stand_ins.put("data.sequence_length", std::to_string(std::min(kUsual, positions)),
                positions > kUsual ? fmt::format("the model has {} positions", positions)
                                   : "the model's positions");
}

void put_overrides(ConfigTree& tree, const LoadOptions& options, ConfigProblems& problems) {
  tree.root.where = tree.file;
  apply_overrides(tree.root, options.overrides,
                  options.accept_model_config ? Weights::kIgnored : Weights::kStartFrom, problems);
}

}  // namespace

ConfigTree read_config_tree(const std::string& file,
                            const LoadOptions& options,
                            ConfigProblems& problems) {
  ConfigTree tree{.file = file_to_read(file, options.accept_model_config)};
  tree.root = read_json_file(tree.file, &problems);
  const bool in_folder = tree.file != file;
  tree.is_model =
      describes_model_alone(tree.root) || (in_folder && tree.root.find("model") == nullptr);
  if (!options.accept_model_config && tree.is_model) refuse_model(file, tree.file);
  if (!options.accept_model_config && in_folder) read_json_file(file);  // says what is wrong
  if (tree.is_model) tree.root = run_around(std::move(tree.root), tree.file);
  put_overrides(tree, options, problems);
  return tree;
}

ConfigTree config_tree_of(std::string_view text,
                          const std::string& file,
                          const LoadOptions& options,
                          ConfigProblems& problems) {
  ConfigTree tree{.file = file, .root = parse_json_document(text, file, &problems)};
  if (describes_model_alone(tree.root)) refuse_model(file, file);
  put_overrides(tree, options, problems);
  return tree;
}

std::string add_stand_ins(ConfigTree& tree) {
  JsonNode& root = tree.root;
  StandIns stand_ins(root);
  if (!says(root, "train_batch_size") && !says(root, "train_micro_batch_size_per_gpu")) {
    stand_ins.put("train_micro_batch_size_per_gpu", "1", "the smallest");
  }
  stand_in_for_sequence(root, stand_ins);
  const JsonNode* f16 = find_path(root, "fp16.enabled");
  const bool is_f16 = f16 != nullptr && f16->boolean;
  if (!is_f16 && !says(root, "bf16.enabled") && !says(root, "bfloat16.enabled")) {
    stand_ins.put("bf16.enabled", "true", "the usual precision");
  }
  if (!says(root, "optimizer.type")) {
    stand_ins.put("optimizer.type", "\"AdamW\"", "the usual optimizer");
  }
  for (const auto& [path, json] :
       {std::pair{"data.train", "\"stand-in\""}, {"training.steps", "1"}}) {
    if (!says(root, path)) stand_ins.put(path, json, "no effect on memory");
  }
  return fmt::format(
      "{}: describes a model and not a run; stand-ins for the missing keys, which --set "
      "KEY=VALUE replaces: {}",
      tree.file, stand_ins.list());
}

}  // namespace dstrain
