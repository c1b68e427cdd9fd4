#include "engine/config/unknown_keys.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config_keys.h"
#include "engine/config/did_you_mean.h"
#include "engine/config/foreign_keys.h"

namespace dstrain {
namespace {

/// Names in other programs of keys that are called differently here.
const std::map<std::string, std::string>& foreign_names() {
  static const std::map<std::string, std::string> names = {
      {"learning_rate", "optimizer.params.lr"},
      {"max_lr", "scheduler.params.warmup_max_lr"},
      {"min_lr", "scheduler.params.warmup_min_lr"},
      {"clip_grad", "gradient_clipping"},
      {"grad_clip", "gradient_clipping"},
      {"batch_size", "train_batch_size"},
      {"global_batch_size", "train_batch_size"},
      {"micro_batch_size", "train_micro_batch_size_per_gpu"},
      {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
      {"max_steps", "training.steps"},
      {"num_steps", "training.steps"},
      {"train_iters", "training.steps"},
      {"warmup_steps", "scheduler.params.warmup_num_steps"},
      {"seq_length", "data.sequence_length"},
      {"max_seq_length", "data.sequence_length"},
      {"block_size", "data.sequence_length"},
      {"save_interval", "checkpoint.interval"},
      {"save_steps", "checkpoint.interval"},
      {"eval_steps", "training.eval_interval"},
      {"tensor_model_parallel_size", "tensor_parallel.size"},
      {"tp_size", "tensor_parallel.size"},
      {"pipeline_model_parallel_size", "pipeline.stages"},
      {"pp_size", "pipeline.stages"},
      {"virtual_pipeline_model_parallel_size", "pipeline.virtual_stages"},
      {"n_layers", "model.num_hidden_layers"},
      {"n_heads", "model.num_attention_heads"},
      {"dim", "model.hidden_size"},
  };
  return names;
}

struct KnownPaths {
  std::set<std::string> leaves;  ///< every key's path and aliases
  std::set<std::string> blocks;  ///< everything that holds keys
};

KnownPaths collect_paths() {
  KnownPaths known;
  for (const Key& key : all_keys()) {
    std::vector<std::string> paths = key.aliases;
    paths.push_back(key.path);
    for (const std::string& path : paths) {
      known.leaves.insert(path);
      for (std::size_t dot = path.find('.'); dot != std::string::npos;
           dot = path.find('.', dot + 1)) {
        known.blocks.insert(path.substr(0, dot));
      }
    }
  }
  return known;
}

const KnownPaths& known_paths() {
  static const KnownPaths known = collect_paths();
  return known;
}

std::string join(const std::string& block, const std::string& name) {
  return block.empty() ? name : block + "." + name;
}

std::string last_name(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

/// Names that may occur directly in `block`.
std::vector<std::string> names_in(const std::string& block) {
  std::vector<std::string> names;
  for (const auto* paths : {&known_paths().leaves, &known_paths().blocks}) {
    for (const std::string& path : *paths) {
      const bool inside = block.empty()
                              ? path.find('.') == std::string::npos
                              : path.size() > block.size() + 1 && path.starts_with(block + ".") &&
                                    path.find('.', block.size() + 1) == std::string::npos;
      if (inside) names.push_back(last_name(path));
    }
  }
  return names;
}

/// The one place of the whole config where a key has this name, "" if there is none or several.
/// Keys that do something come before those without effect.
std::string only_place_of(const std::string& name) {
  for (const bool honoured : {true, false}) {
    std::set<std::string> places;  // families may have a key each at one place
    for (const Key& key : all_keys()) {
      const bool wanted = honoured == (key.status == KeyStatus::kHonoured);
      if (wanted && last_name(key.path) == name) places.insert(key.path);
    }
    if (places.size() == 1) return *places.begin();
    if (places.size() > 1) return "";
  }
  return "";
}

/// The key's own path where `path` is an alias.
std::string own_path(const std::string& path) {
  for (const Key& key : all_keys()) {
    if (std::find(key.aliases.begin(), key.aliases.end(), path) != key.aliases.end()) {
      return key.path;
    }
  }
  return path;
}

/// A block may be null or "auto", and then has no values.
bool says_nothing(const JsonNode& node) {
  return node.is(JsonNode::Kind::kNull) || node.is_text("auto");
}

class UnknownKeys {
 public:
  UnknownKeys(const JsonNode& root,
              bool allow,
              std::vector<std::string>& notices,
              ConfigProblems& problems)
      : root_(root),
        is_neox_config_(is_neox_config(root)),
        allow_(allow),
        notices_(notices),
        problems_(problems) {}

  void check_block(const JsonNode& node, const std::string& block) {
    for (const JsonMember& member : node.members) {
      const std::string path = join(block, member.key);
      const bool is_block = known_paths().blocks.contains(path);
      const bool is_leaf = known_paths().leaves.contains(path);
      if (is_block && member.value.is(JsonNode::Kind::kObject)) {
        check_block(member.value, path);
      } else if (!is_block && !is_leaf && is_foreign(block, member.key)) {
        continue;
      } else if (is_block && !is_leaf && !says_nothing(member.value)) {
        if (problems_.spoil(path)) continue;
        problems_.add({.where = member.value.where,
                       .path = path,
                       .message = "must be an object {…}, found " + member.value.describe(),
                       .mend = {}});
      } else if (!is_block && !is_leaf) {
        add_unknown(member, block);
      }
    }
  }

  /// Reports keys that are in no table and yet are not mistakes.
  void tell_foreign() const {
    if (!comments_.empty()) {
      notices_.push_back(fmt::format("no effect: {}: comments", fmt::join(comments_, ", ")));
    }
    if (!neox_arguments_.empty()) {
      notices_.push_back(
          fmt::format("no effect: {}: GPT-NeoX's Python code reads them, not DeepSpeed",
                      fmt::join(neox_arguments_, ", ")));
    }
  }

 private:
  bool is_foreign(const std::string& block, const std::string& name) {
    if (is_neox_config_ && block.empty() && is_neox_key(name)) {
      neox_arguments_.push_back(name);
    } else if (is_comment_key(name)) {
      comments_.push_back(join(block, name));
    } else {
      return false;
    }
    return true;
  }

  void add_unknown(const JsonMember& member, const std::string& block) {
    const std::string path = join(block, member.key);
    const KeySuggestion meant = suggest_key(block, member.key);
    if (allow_) {
      notices_.push_back(fmt::format("{}: {}: unknown key, ignored{}", member.where, path,
                                     meant.text.empty() ? "" : "; " + meant.text));
      return;
    }
    // In a model of another family all keys may be unknown.
    if (problems_.spoil(path) || (block == "model" && problems_.spoil("model.model_type"))) return;
    problems_.add_unknown({.where = member.where,
                           .path = path,
                           .message = "unknown key" + (meant.text.empty() ? "" : ", " + meant.text),
                           .mend = mend_of(member, path, meant.path)},
                          own_path(meant.path));
  }

  /// The right name may already be in use.
  [[nodiscard]] std::vector<ConfigEdit> mend_of(const JsonMember& member,
                                                const std::string& path,
                                                const std::string& meant) const {
    if (member.key.find('.') != std::string::npos) return {};
    if (meant.empty() || find_path(root_, meant) != nullptr) {
      return {{ConfigEdit::Kind::kRemove, path, ""}};
    }
    return {{ConfigEdit::Kind::kRename, path, meant}};
  }

  const JsonNode& root_;
  bool is_neox_config_;
  std::vector<std::string> comments_;
  std::vector<std::string> neox_arguments_;
  bool allow_;
  std::vector<std::string>& notices_;
  ConfigProblems& problems_;
};

}  // namespace

bool is_known_path(const std::string& path) {
  return known_paths().leaves.contains(path) || known_paths().blocks.contains(path);
}

KeySuggestion suggest_key(const std::string& block, const std::string& name) {
  const auto here = [&](const std::string& found) {
    return KeySuggestion{fmt::format("did you mean \"{}\"?", found), join(block, found)};
  };
  const std::vector<std::string> siblings = names_in(block);
  if (const auto twin = nearest_name(name, siblings, 1)) return here(*twin);
  if (const std::string place = only_place_of(name); !place.empty()) {
    return {fmt::format("it belongs at \"{}\"", place), place};
  }
  if (const auto found = foreign_names().find(name); found != foreign_names().end()) {
    return {fmt::format("the key for it is \"{}\"", found->second), found->second};
  }
  const std::size_t limit = typing_error_limit(name);
  if (const auto sibling = nearest_name(name, siblings, limit)) return here(*sibling);
  std::vector<std::string> everywhere;
  for (const std::string& path : known_paths().leaves) {
    everywhere.push_back(last_name(path));
  }
  if (const auto far = nearest_name(name, everywhere, limit)) {
    if (const std::string place = only_place_of(*far); !place.empty()) {
      return {fmt::format("did you mean \"{}\"?", place), place};
    }
  }
  return {};
}

void check_known_keys(const JsonNode& root,
                      bool allow,
                      std::vector<std::string>& notices,
                      ConfigProblems& problems) {
  UnknownKeys keys(root, allow, notices, problems);
  keys.check_block(root, "");
  keys.tell_foreign();
}

}  // namespace dstrain
