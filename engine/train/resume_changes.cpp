#include "engine/train/resume_changes.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::json;
using Values = std::map<std::string, Json>;  // by key, "optimizer.params.lr"

constexpr std::string_view kNone = "none";

/// Keys and beginnings of keys that change where, when and how fast, but not what is computed.
constexpr std::array<std::string_view, 14> kWithoutEffect = {"_notes",
                                                             "checkpoint.",
                                                             "model.initial_weights",
                                                             "steps_per_print",
                                                             "wall_clock_breakdown",
                                                             "training.output_dir",
                                                             "training.threads",
                                                             "training.eval_interval",
                                                             "training.eval_batches",
                                                             "training.matmul_algorithms",
                                                             "training.max_consecutive_skips",
                                                             "training.replica_check_interval",
                                                             "elasticity.",
                                                             "training.cuda_graphs"};

bool has_effect(const std::string& key) {
  return std::none_of(kWithoutEffect.begin(), kWithoutEffect.end(), [&](std::string_view other) {
    return other.ends_with('.') ? key.starts_with(other) : key == other;
  });
}

/// Collects the leaves of an object; anything that `whole` names is one value.
void collect(const Json& node, const std::string& path, const Values& whole, Values& values) {
  if (!node.is_object() || whole.contains(path)) {
    values.emplace(path, node);
    return;
  }
  for (const auto& [key, value] : node.items()) {
    collect(value, path.empty() ? key : path + "." + key, whole, values);
  }
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string value_or_none(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? std::string(kNone) : text_of(found->second);
}

/// train = micro × accumulation × data-parallel ranks; none if one of them is missing.
std::optional<std::int64_t> ranks_of(const Values& values) {
  const auto number = [&](const char* key) -> std::int64_t {
    const auto found = values.find(key);
    return found != values.end() && found->second.is_number_integer()
               ? found->second.get<std::int64_t>()
               : 0;
  };
  const std::int64_t share =
      number("train_micro_batch_size_per_gpu") * number("gradient_accumulation_steps");
  const std::int64_t copies = share > 0 ? number("train_batch_size") / share : 0;
  const std::int64_t ranks = copies * std::max<std::int64_t>(number("pipeline.stages"), 1) *
                             std::max<std::int64_t>(number("tensor_parallel.size"), 1);
  return ranks > 0 ? std::optional(ranks) : std::nullopt;
}

/// Where another kind of optimizer or schedule is chosen, its parameters all differ: only the kind
/// and the rate are worth a row.
bool is_told_by_type(const std::string& key, const Values& then, const Values& now) {
  for (const std::string block : {"optimizer", "scheduler"}) {
    const bool other_type =
        value_or_none(then, block + ".type") != value_or_none(now, block + ".type");
    if (other_type && key.starts_with(block + ".") && key != block + ".type" &&
        key != "optimizer.params.lr") {
      return true;
    }
  }
  return false;
}

/// What the paths alone do not show about the data.
std::string content_note(const std::map<std::string, std::string>& then, const std::string& now) {
  return std::any_of(then.begin(), then.end(),
                     [&](const auto& entry) { return entry.second == now; })
             ? " (the same tokens)"
             : "";
}

/// Adds token files that have kept their names but not their contents, and vice versa.
void add_data(const TrainingState& then, const Config& now, std::vector<ChangedSetting>& changes) {
  const std::map<std::string, std::string> contents = data_contents(now.data);
  for (const auto& [prefix, content] : contents) {
    if (const auto before = then.data.find(prefix);
        before != then.data.end() && before->second != content) {
      changes.push_back({prefix, "tokens " + before->second, "other tokens, " + content});
    }
  }
  for (ChangedSetting& change : changes) {
    if (const auto found = contents.find(change.now);
        found != contents.end() && change.key.starts_with("data.")) {
      change.now += content_note(then.data, found->second);
    }
  }
}

}  // namespace

std::optional<std::vector<ChangedSetting>> changes_since(const TrainingState& then,
                                                         const LoadedConfig& now) {
  const Json before = Json::parse(then.config, nullptr, /*allow_exceptions=*/false);
  if (!before.is_object() || !before.contains("training")) {
    return std::nullopt;
  }
  Values values_now;
  std::map<std::string, std::string> origins;
  for (const ConfigValue& value : now.values) {
    values_now.emplace(value.path, Json::parse(value.value, nullptr, false));
    origins.emplace(value.path, value.origin);
  }
  Values values_then;
  collect(before, "", values_now, values_then);

  std::vector<ChangedSetting> changes;
  const auto add = [&](const std::string& key) {
    if (has_effect(key) && !is_told_by_type(key, values_then, values_now)) {
      changes.push_back({key, value_or_none(values_then, key), value_or_none(values_now, key)});
    }
  };
  const auto ranks_then = ranks_of(values_then);
  const auto ranks_now = ranks_of(values_now);
  if (ranks_then && ranks_now && ranks_then != ranks_now) {
    changes.push_back({"ranks", std::to_string(*ranks_then), std::to_string(*ranks_now)});
  }
  for (const ConfigValue& value : now.values) {
    const auto found = values_then.find(value.path);
    const bool is_new_key =
        found == values_then.end() && !value.origin.starts_with("--set") &&
        (value.origin.starts_with("default") || value.origin.starts_with("derived"));
    if (!is_new_key && (found == values_then.end() || found->second != values_now[value.path])) {
      add(value.path);
    }
  }
  for (const auto& [key, value] : values_then) {
    if (!values_now.contains(key)) {
      add(key);
    }
  }
  add_data(then, now.config, changes);
  const auto tokenizer = tokenizer_of_data(now.config.data);
  if (tokenizer && then.tokenizer && *tokenizer != *then.tokenizer) {
    changes.push_back({"tokenizer", describe(*then.tokenizer), describe(*tokenizer)});
  }
  return changes;
}

std::vector<std::string> describe_changes(const std::string& beginning,
                                          const TrainingState& then,
                                          const LoadedConfig& now) {
  const auto changes = changes_since(then, now);
  if (!changes) {
    return {beginning + "; the settings of the run that saved it are not known"};
  }
  if (changes->empty()) {
    return {beginning + "; nothing differs from the run that saved it"};
  }
  std::vector<std::string> lines{beginning + "; what differs from the run that saved it:"};
  std::size_t key_width = 0;
  std::size_t then_width = 0;
  constexpr std::size_t kWidest = 40;
  for (const ChangedSetting& change : *changes) {
    key_width = std::max(key_width, change.key.size());
    then_width = std::max(then_width, std::min(kWidest, change.then.size()));
  }
  for (const ChangedSetting& change : *changes) {
    lines.push_back(fmt::format(
        "  {:<{}}  {:<{}} → {}{}", change.key, key_width, change.then, then_width, change.now,
        change.key == "training.seed" ? " (another order of samples)" : ""));
  }
  return lines;
}

}  // namespace dstrain
