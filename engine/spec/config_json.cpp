#include "engine/spec/config_json.h"

#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "engine/spec/config_keys.h"
#include "engine/spec/config_values.h"
#include "engine/spec/key_check.h"
#include "engine/spec/model_config_file.h"
#include "engine/spec/model_families.h"
#include "engine/spec/other_models.h"
#include "engine/spec/unknown_keys.h"

namespace dstrain {
namespace {

/// Reads the keys of one tree into a draft, in the order of the table.
class KeyReader {
 public:
  explicit KeyReader(const JsonNode& root) : root_(root), written_(root) {}

  /// Keys without a condition first: they decide which of the others apply.
  void read_all() {
    for (const bool conditional : {false, true}) {
      for (const Key& key : all_keys()) {
        if (static_cast<bool>(key.applies) == conditional && key.applies_in(draft_.config)) {
          read(key);
        }
      }
    }
    for (const Key& key : all_keys()) {
      if (!key.applies_in(draft_.config)) refuse_misplaced(key);
    }
  }

  ConfigDraft& draft() { return draft_; }
  [[nodiscard]] const WrittenKeys& written() const { return written_; }

  /// One line for all keys that have no effect for the same reason.
  [[nodiscard]] std::vector<std::string> notices() const {
    std::vector<std::string> lines;
    for (const auto& [note, paths] : without_effect_) {
      std::string list;
      for (const std::string& path : paths) {
        list += (list.empty() ? "" : ", ") + path;
      }
      lines.push_back(fmt::format("no effect: {}: {}", list, note));
    }
    return lines;
  }

 private:
  void read(const Key& key) {
    const JsonNode* node = written_node(key);
    if (node == nullptr || is_as_if_absent(key, *node)) {
      if (!key.missing.empty()) refuse_missing(key);
      return;
    }
    check_value(key, *node);
    if (key.status == KeyStatus::kNoEffect && !is_accepted_value(key, *node)) {
      without_effect_[key.note].push_back(key.path);
    }
    if (key.set) key.set(draft_, *node);
    written_.add(key.path, *node);
  }

  /// The value under the key's path or one of its aliases; --set wins over the file.
  const JsonNode* written_node(const Key& key) {
    std::vector<std::string> paths = key.aliases;
    paths.insert(paths.begin(), key.path);
    const JsonNode* found = nullptr;
    for (const std::string& path : paths) {
      const JsonNode* node = find_path(root_, path);
      if (node == nullptr || (is_block(path) && node->is(JsonNode::Kind::kObject))) continue;
      claimed_.insert(path);
      const auto unset = key.unset_by.find(path);
      if (unset != key.unset_by.end() && node->dump() == unset->second) continue;
      if (found != nullptr && is_override(*found) == is_override(*node)) {
        throw_config_error(
            node->where, path,
            fmt::format("given twice; {} at {} means the same", key.path, found->where));
      }
      if (found == nullptr || is_override(*node)) found = node;
    }
    return found;
  }

  /// A key can be a block elsewhere: "zero_optimization": false.
  static bool is_block(const std::string& path) { return path == "zero_optimization"; }

  void refuse_missing(const Key& key) const {
    const std::string block = key.path.substr(0, key.path.find('.'));
    const JsonNode* written = find_path(root_, block);
    const bool absent = written == nullptr || written->is(JsonNode::Kind::kNull);
    if (block == "model" && absent) {
      throw_config_error(root_.where, block,
                         "missing: write the keys of a Hugging Face config.json, or the path of a "
                         "folder that holds one");
    }
    throw_config_error(written_.where(key.path), key.path, "missing: " + key.missing);
  }

  void refuse_misplaced(const Key& key) const {
    const JsonNode* node = find_path(root_, key.path);
    if (node == nullptr || claimed_.contains(key.path)) return;
    throw_config_error(
        node->where, key.path,
        fmt::format("has no meaning for {}: it belongs to {}", chosen_kind(key), key.applies_to));
  }

  /// What the file chose that leaves this key without meaning.
  [[nodiscard]] std::string chosen_kind(const Key& key) const {
    if (key.path.starts_with("model.")) {
      return "model_type " + json_quote(draft_.config.model.model_type);
    }
    const std::string block = key.path.substr(0, key.path.find('.'));
    const JsonNode* type = find_path(root_, block + ".type");
    return type == nullptr ? fmt::format("a {} without type", block)
                           : fmt::format("{}.type {}", block, type->dump());
  }

  const JsonNode& root_;
  WrittenKeys written_;
  ConfigDraft draft_;
  std::set<std::string> claimed_;
  std::map<std::string, std::vector<std::string>> without_effect_;
};

/// torch.optim.AdamW decays by default; and type AdamW is deaf to adam_w_mode, as in DeepSpeed.
void finish_adam(ConfigDraft& draft,
                 const WrittenKeys& written,
                 std::vector<std::string>& notices) {
  constexpr double kTorchDecay = 0.01;
  OptimizerConfig& optimizer = draft.config.optimizer;
  const std::string decay = "optimizer.params.weight_decay";
  if (draft.torch_adam && optimizer.kind == OptimizerKind::kAdamW && !written.has(decay)) {
    optimizer.weight_decay = kTorchDecay;
    draft.derived[decay] = "torch.optim.AdamW's default (torch_adam)";
  }
  if (draft.adam_w_mode_is_false && optimizer.kind == OptimizerKind::kAdamW) {
    notices.emplace_back(
        "no effect: optimizer.params.adam_w_mode: type AdamW decouples the decay whatever it says; "
        "for decay that is added to the gradient write type Adam");
  }
}

void check_recompute(const Config& config, const WrittenKeys& written) {
  const std::string path = "activation_checkpointing.layers";
  const std::int64_t blocks = config.model.num_layers;
  if (const auto layers = config.recompute.layers; layers && *layers > blocks) {
    throw_config_error(written.where(path), path,
                       fmt::format("must be at most {}, the number of the model's blocks, found "
                                   "{}; leave it out for all",
                                   blocks, *layers));
  }
}

/// What follows from the file's own values, without knowing how many ranks there will be.
void finish(ConfigDraft& draft,
            const WrittenKeys& written,
            const std::string& file,
            std::vector<std::string>& notices) {
  Config& config = draft.config;
  if (config.data.train.empty()) {
    throw_config_error(written.where("data.train"), "data.train", "the list is empty");
  }
  finish_model(draft, written);
  finish_adam(draft, written, notices);
  check_recompute(config, written);
  if (config.training.output_dir.empty()) {
    if (written.has("training.output_dir")) {
      throw_config_error(written.where("training.output_dir"), "training.output_dir",
                         "is empty; write a folder, or leave it out for runs/<name of this file>");
    }
    config.training.output_dir = "runs/" + std::filesystem::path(file).stem().string();
    draft.derived["training.output_dir"] = "runs/<name of the config>";
  }
  if (draft.warmup_max_lr_is_auto) {
    config.scheduler.warmup_max_lr = config.optimizer.learning_rate;
    draft.derived["scheduler.params.warmup_max_lr"] = "optimizer.params.lr";
  }
  if (config.data.validation.empty() && config.training.eval_interval > 0) {
    notices.emplace_back("no effect: training.eval_interval: there is no data.validation");
  }
}

}  // namespace

LoadedConfig load_config(const std::string& file, const LoadOptions& options) {
  LoadedConfig loaded = load_config_tree(read_config_tree(file, options), options);
  loaded.file = file;
  return loaded;
}

LoadedConfig load_config_tree(ConfigTree tree, const LoadOptions& options) {
  const JsonNode& root = tree.root;
  LoadedConfig loaded{.file = tree.file};
  if (tree.is_model) loaded.notices.push_back(add_stand_ins(tree));
  refuse_other_models(root);
  check_known_keys(root, options.allow_unknown_keys, loaded.notices);
  KeyReader reader(root);
  reader.read_all();
  for (const std::string& notice : reader.notices()) {
    loaded.notices.push_back(notice);
  }
  finish(reader.draft(), reader.written(), tree.file, loaded.notices);

  std::map<std::string, std::string> origins;
  for (const Key& key : all_keys()) {
    if (reader.written().has(key.path)) origins[key.path] = reader.written().origin(key.path);
  }
  for (const auto& [path, reason] : reader.draft().derived) {
    origins[path] = "derived: " + reason;
  }
  loaded.config = reader.draft().config;
  loaded.values = list_values(loaded.config, origins);
  return loaded;
}

}  // namespace dstrain
