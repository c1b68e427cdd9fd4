#include "engine/config/config_json.h"

#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config_keys.h"
#include "engine/config/config_values.h"
#include "engine/config/key_check.h"
#include "engine/config/lax_values.h"
#include "engine/config/model_config_file.h"
#include "engine/config/model_families.h"
#include "engine/config/other_models.h"
#include "engine/config/unknown_keys.h"
#include "engine/config/value_mend.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

/// Reads the keys of one tree into a draft, in the order of the table.
class KeyReader {
 public:
  KeyReader(const JsonNode& root, const LoadOptions& options, ConfigProblems& problems)
      : root_(root), options_(options), problems_(problems), written_(root) {}

  /// Keys without a condition first: they decide which of the others apply.
  void read_all() {
    for (const bool conditional : {false, true}) {
      for (const Key& key : all_keys()) {
        if (static_cast<bool>(key.applies) == conditional && is_decided(key) &&
            key.applies_in(draft_.config)) {
          problems_.attempt([&] { read(key); });
        }
      }
    }
    for (const Key& key : all_keys()) {
      if (is_decided(key) && !key.applies_in(draft_.config)) {
        problems_.attempt([&] { refuse_misplaced(key); });
      }
    }
  }

  ConfigDraft& draft() { return draft_; }
  [[nodiscard]] const WrittenKeys& written() const { return written_; }

  /// One line for all keys that have no effect for the same reason.
  [[nodiscard]] std::vector<std::string> notices() const {
    std::vector<std::string> lines;
    for (const auto& [note, paths] : without_effect_) {
      lines.push_back(fmt::format("no effect: {}: {}", fmt::join(paths, ", "), note));
    }
    for (const std::string& choice : choices_) {
      lines.push_back(choice);
    }
    return lines;
  }
  /// The same for settings that are requested but not honoured.
  [[nodiscard]] std::vector<std::string> warnings() const {
    std::vector<std::string> lines;
    for (const auto& [note, paths] : not_done_) {
      lines.push_back(fmt::format("not done: {}: {}", fmt::join(paths, ", "), note));
    }
    return lines;
  }

 private:
  struct Written {
    const JsonNode* node = nullptr;
    std::string path;  ///< the key's own, or an alias
  };
  /// A key cannot be judged if the value that decides whether it applies is invalid.
  [[nodiscard]] bool is_decided(const Key& key) const {
    if (!key.applies) return true;
    const std::string block = key.path.substr(0, key.path.find('.'));
    if (block == "model") return !problems_.spoil("model.model_type");
    if (block == "optimizer" || block == "scheduler") return !problems_.spoil(block + ".type");
    if (block == "zero_optimization") return !problems_.spoil("zero_optimization.stage");
    if (block == "activation_checkpointing") return !problems_.spoil(block + ".granularity");
    if (block == "fp8") return !problems_.spoil("fp8.enabled");
    return !problems_.spoil_any({"fp16.enabled", "bf16.enabled"});
  }

  void read(const Key& key) {
    if (problems_.spoil(key.path)) return;
    const Written written = written_node(key);
    const JsonNode* node = written.node;
    if (node != nullptr && node->is_text("auto")) draft_.automatic.insert(key.path);
    if (node == nullptr || is_as_if_absent(key, *node)) {
      if (!key.missing.empty()) refuse_missing(key);
      return;
    }
    if (key.offloads && options_.ignore_offload && !is_accepted_value(key, *node)) {
      not_done_["--ignore-offload: parameters, gradients and optimizer stay on the device"]
          .push_back(fmt::format("{}={}", written.path, node->dump()));
      return;
    }
    const JsonNode value = value_meant(key, first_candidate(key, *node));
    try {
      check_value(key, value);
      if (key.set) key.set(draft_, value);
    } catch (const ConfigError& error) {
      ConfigProblem problem = error.problems().front();
      if (problem.mend.empty()) problem.mend = mend_of(key, written);
      throw ConfigError(std::move(problem));
    }
    if (key.status == KeyStatus::kNoEffect && !is_accepted_value(key, value)) {
      (key.warns ? not_done_ : without_effect_)[key.note].push_back(key.path);
    }
    if (!key.auto_value.empty() && node->is_text("auto")) {
      draft_.derived[key.path] = kTrainerDefault;
    }
    written_.add(key.path, *node);
  }

  /// DeepSpeed's autotuning accepts a list of values to try where a single one is expected.
  const JsonNode& first_candidate(const Key& key, const JsonNode& node) {
    const bool is_list = node.is(JsonNode::Kind::kArray) && !node.items.empty();
    if (!is_list || key.kind == KeyKind::kAny || root_.find("autotuning") == nullptr) return node;
    choices_.push_back(fmt::format("{}: {}, the first of the candidates {} for autotuning",
                                   key.path, node.items.front().dump(), node.dump()));
    return node.items.front();
  }

  [[nodiscard]] bool would_do(const Key& key, const JsonNode& value) const {
    try {
      check_value(key, value);
      ConfigDraft copy = draft_;
      if (key.set) key.set(copy, value);
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  /// Suggests a value that would do, or to remove the key where it is clear what its absence means.
  [[nodiscard]] std::vector<ConfigEdit> mend_of(const Key& key, const Written& written) const {
    for (const JsonNode& value : nearby_values(key, *written.node)) {
      if (would_do(key, value)) {
        return {{ConfigEdit::Kind::kSet, written.path, value.dump()}};
      }
    }
    const bool says_nothing =
        written.node->is_text("auto") || written.node->is(JsonNode::Kind::kNull);
    const bool may_go = key.status != KeyStatus::kHonoured || says_nothing;
    if (!may_go || !key.missing.empty()) return {};
    return {{ConfigEdit::Kind::kRemove, written.path, ""}};
  }

  /// The value under the key's path or one of its aliases; --set wins over the file.
  Written written_node(const Key& key) {
    std::vector<std::string> paths = {key.path};
    paths.insert(paths.end(), key.aliases.begin(), key.aliases.end());
    Written found;
    for (const std::string& path : paths) {
      const JsonNode* node = find_path(root_, path);
      if (node == nullptr || (is_block(path) && node->is(JsonNode::Kind::kObject))) continue;
      claimed_.insert(path);
      const auto unset = key.unset_by.find(path);
      if (unset != key.unset_by.end() && node->dump() == unset->second) continue;
      const bool again = found.node != nullptr && is_override(*found.node) == is_override(*node);
      if (again && found.node->dump() != node->dump()) {
        throw_config_error(
            node->where, path,
            fmt::format("given twice; {} at {} means the same", found.path, found.node->where),
            {{ConfigEdit::Kind::kRemove, path, ""}});
      }
      if (found.node == nullptr || is_override(*node)) found = {node, path};
    }
    return found;
  }

  /// Some keys are also blocks: "zero_optimization": false.
  static bool is_block(const std::string& path) { return path == "zero_optimization"; }

  void refuse_missing(const Key& key) const {
    const std::string block = key.path.substr(0, key.path.find('.'));
    if (block == "model" && problems_.spoil("model.model_type")) return;  // other keys, other needs
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
    if (node == nullptr || claimed_.contains(key.path) || problems_.spoil(key.path)) return;
    if (node->is(JsonNode::Kind::kNull) || node->is_text("auto")) return;  // it asks for nothing
    throw_config_error(
        node->where, key.path,
        fmt::format("has no meaning for {}: it belongs to {}", chosen_kind(key), key.applies_to),
        {{ConfigEdit::Kind::kRemove, key.path, ""}});
  }

  /// The choice in the file that leaves this key without meaning.
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
  const LoadOptions& options_;
  ConfigProblems& problems_;
  WrittenKeys written_;
  ConfigDraft draft_;
  std::set<std::string> claimed_;
  std::map<std::string, std::vector<std::string>> without_effect_;
  std::map<std::string, std::vector<std::string>> not_done_;
  std::vector<std::string> choices_;
};

constexpr const char* kRecomputedLayers = "activation_checkpointing.layers";

/// torch.optim.AdamW decays by default; and type AdamW ignores adam_w_mode, as in DeepSpeed.
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
        "for decay that is added to the gradient, write type Adam");
  }
}

/// Without an "optimizer" block a Python script would bring its own: that of Hugging Face's
/// Trainer.
void finish_optimizer(ConfigDraft& draft,
                      const WrittenKeys& written,
                      std::vector<std::string>& notices) {
  constexpr double kTrainerRate = 5e-5;
  if (written.has("optimizer.type")) return;
  OptimizerConfig& adam = draft.config.optimizer;  // whose other defaults are the Trainer's
  if (!written.has("optimizer.params.lr")) adam.learning_rate = kTrainerRate;
  for (const char* name :
       {"type", "params.lr", "params.betas", "params.eps", "params.weight_decay"}) {
    const std::string path = fmt::format("optimizer.{}", name);
    if (!written.has(path)) draft.derived[path] = kTrainerDefault;
  }
  notices.push_back(fmt::format(
      "optimizer: none is written: AdamW, as Hugging Face's Trainer has it, with lr {}, betas "
      "[{}, {}], eps {}, weight_decay {}",
      adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon, adam.weight_decay));
}

/// Settles "auto" for keys that follow from others.
void finish_automatic(ConfigDraft& draft) {
  constexpr double kShareOfBlock = 0.9;  // both figures as the Trainer documents them
  constexpr std::int64_t kUnits = 10;
  Config& config = draft.config;
  const auto is_auto = [&](const std::string& path) { return draft.automatic.contains(path); };
  const std::int64_t hidden = config.model.hidden_size;
  if (const std::string path = "scheduler.params.warmup_max_lr"; is_auto(path)) {
    config.scheduler.warmup_max_lr = config.optimizer.learning_rate;
    draft.derived[path] = "optimizer.params.lr";
  }
  if (const std::string path = "scheduler.params.cycle_max_lr"; is_auto(path)) {
    config.scheduler.one_cycle.max_lr = config.optimizer.learning_rate;
    draft.derived[path] = "optimizer.params.lr";
  }
  if (!cuts_of(config.zero.stage).parameters) return;
  if (const std::string path = "zero_optimization.stage3_prefetch_bucket_size"; is_auto(path)) {
    config.zero.prefetch_bucket_size = static_cast<std::int64_t>(
        kShareOfBlock * static_cast<double>(hidden) * static_cast<double>(hidden));
    draft.derived[path] = "0.9 × hidden_size² (Hugging Face's Trainer)";
  }
  if (const std::string path = "zero_optimization.stage3_param_persistence_threshold";
      is_auto(path)) {
    config.zero.param_persistence_threshold = kUnits * hidden;
    draft.derived[path] = "10 × hidden_size (Hugging Face's Trainer)";
  }
}

void check_recompute(const Config& config, const WrittenKeys& written) {
  const std::string path = kRecomputedLayers;
  const std::int64_t blocks = config.model.num_layers;
  if (const auto layers = config.recompute.layers; layers && *layers > blocks) {
    throw_config_error(written.where(path), path,
                       fmt::format("must be at most {}, the number of the model's blocks, found "
                                   "{}; leave it out for all",
                                   blocks, *layers),
                       {{ConfigEdit::Kind::kRemove, path, ""}});
  }
}

/// Settles what follows from the file's own values, without knowing how many ranks there will be.
void finish(ConfigDraft& draft,
            const WrittenKeys& written,
            const std::string& file,
            std::vector<std::string>& notices,
            ConfigProblems& problems) {
  Config& config = draft.config;
  if (config.data.train.empty() && !problems.spoil("data.train")) {
    problems.add({.where = written.where("data.train"),
                  .path = "data.train",
                  .message = "the list is empty",
                  .mend = {}});
  }
  finish_model(draft, written, problems);
  finish_optimizer(draft, written, notices);
  finish_adam(draft, written, notices);
  if (!problems.spoil_any({kRecomputedLayers, "model.num_hidden_layers", "model.n_layer"})) {
    problems.attempt([&] { check_recompute(config, written); });
  }
  if (config.training.output_dir.empty()) {
    if (written.has("training.output_dir")) {
      problems.add(
          {.where = written.where("training.output_dir"),
           .path = "training.output_dir",
           .message = "is empty; write a folder, or leave it out for runs/<name of this file>",
           .mend = {{ConfigEdit::Kind::kRemove, "training.output_dir", ""}}});
    }
    config.training.output_dir = "runs/" + std::filesystem::path(file).stem().string();
    draft.derived["training.output_dir"] = "runs/<name of the config>";
  }
  finish_automatic(draft);
  if (config.data.validation.empty() && config.training.eval_prompts.empty() &&
      config.training.eval_interval > 0) {
    notices.emplace_back("no effect: training.eval_interval: there is no data.validation");
  }
}

}  // namespace

LoadedConfig load_config(const std::string& file, const LoadOptions& options) {
  ConfigProblems problems;
  LoadedConfig loaded = load_config(file, options, problems);
  problems.throw_if_any(file);
  return loaded;
}

LoadedConfig load_config(const std::string& file,
                         const LoadOptions& options,
                         ConfigProblems& problems) {
  LoadedConfig loaded =
      load_config_tree(read_config_tree(file, options, problems), options, problems);
  loaded.file = file;
  return loaded;
}

LoadedConfig load_config_tree(ConfigTree tree,
                              const LoadOptions& options,
                              ConfigProblems& problems) {
  const JsonNode& root = tree.root;
  LoadedConfig loaded{.file = tree.file};
  if (tree.is_model) loaded.notices.push_back(add_stand_ins(tree));
  if (!problems.spoil("model")) problems.attempt([&] { refuse_other_models(root); });
  check_known_keys(root, options.allow_unknown_keys, loaded.notices, problems);
  KeyReader reader(root, options, problems);
  reader.read_all();
  for (const std::vector<std::string>& lines : {reader.notices(), reader.draft().notices}) {
    loaded.notices.insert(loaded.notices.end(), lines.begin(), lines.end());
  }
  loaded.warnings = reader.warnings();
  finish(reader.draft(), reader.written(), tree.file, loaded.notices, problems);

  std::map<std::string, std::string> origins;
  for (const Key& key : all_keys()) {
    if (reader.written().has(key.path)) origins[key.path] = reader.written().origin(key.path);
  }
  for (const auto& [path, reason] : reader.draft().derived) {
    origins[path] = reason == kTrainerDefault ? reason : "derived: " + reason;
  }
  loaded.config = reader.draft().config;
  loaded.values = list_values(loaded.config, origins);
  return loaded;
}

}  // namespace dstrain
