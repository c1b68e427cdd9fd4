// Prints what config_schema_test.py needs, as one JSON object: the schema, and configs with the
// reader's verdict on each: the shipped ones, what a run writes back of them, and a small one with
// every key of the table set to values of every kind.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_json.h"
#include "engine/config/config_keys.h"
#include "engine/config/config_overrides.h"
#include "engine/config/config_schema.h"
#include "engine/config/model_config_file.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSmall = R"({
  "train_batch_size": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
  "model": {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128
  },
  "data": {"train": "data/train"},
  "training": {"steps": 10, "output_dir": "runs/small"}
})";

/// Settings that make one key or another apply.
const std::vector<std::vector<std::string>>& settings() {
  static const std::vector<std::vector<std::string>> all = {
      {},
      {R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
          "n_positions": 128})"},
      {"model.model_type=mistral", "model.sliding_window=null"},
      {"model.model_type=qwen2"},
      {"model.model_type=qwen3"},
      {"model.model_type=olmo2"},
      {"model.model_type=olmo3"},
      {"model.model_type=smollm3"},
      {"model.model_type=phi3"},
      {"model.model_type=starcoder2"},
      {"model.model_type=gemma2"},
      {"model.model_type=gemma2", "model.attn_logit_softcapping=null"},
      {"model.model_type=gemma3_text", "model.sliding_window_pattern=2"},
      {R"(model={"model_type": "gpt_neox", "vocab_size": 256, "hidden_size": 64,
                 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "max_position_embeddings": 128})"},
      {R"(model={"model_type": "opt", "vocab_size": 256, "hidden_size": 64, "ffn_dim": 96,
                 "num_hidden_layers": 2, "num_attention_heads": 4,
                 "max_position_embeddings": 128})"},
      {R"(model={"model_type": "bloom", "vocab_size": 256, "hidden_size": 64, "n_layer": 2,
                 "n_head": 4})"},
      {R"(model={"model_type": "baichuan", "vocab_size": 256, "hidden_size": 64,
                 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "max_position_embeddings": 128})"},
      {R"(model={"model_type": "baichuan", "vocab_size": 256, "hidden_size": 64,
                 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "model_max_length": 128, "norm_head": true})"},
      {"model.model_type=mixtral"},
      {"model.model_type=qwen3_moe", "model.mlp_only_layers=[0]"},
      {"model.model_type=olmoe"},
      {"model.model_type=gpt_oss"},
      {"model.model_type=deepseek_v2", "model.topk_method=group_limited_greedy", "model.n_group=8",
       "model.topk_group=3"},
      {"model.model_type=deepseek_v3", "model.moe_router_bias_update_rate=0.01"},
      {"optimizer.type=SGD"},
      {"optimizer.type=Adagrad"},
      {"optimizer.type=RMSprop"},
      {"optimizer.type=Lamb"},
      {"optimizer.type=Muon"},
      {"optimizer.type=ZeroOneAdam"},
      {"optimizer.type=OneBitLamb"},
      {"gradient_compression.kind=powersgd"},
      {"gradient_compression.kind=top_k"},
      {"scheduler.type=WarmupLR"},
      {"scheduler.type=WarmupDecayLR"},
      {"scheduler.type=WarmupCosineLR"},
      {"scheduler.type=LRRangeTest"},
      {R"(scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}})"},
      {"zero_optimization.stage=3"},
      {"fp16.enabled=true", "zero_optimization.stage=1"},
      {"bf16.enabled=true"},
      {"fp8.enabled=true"},
      {"activation_checkpointing.granularity=full"}};
  return all;
}

/// Whether a message is about several keys at once, which no schema of one key expresses, or about
/// what lies on the disk.
bool spans_keys(const std::string& message) {
  for (const char* part : {"heads do not divide",
                           "does not divide num_attention_heads",
                           "positions need an even",
                           "is longer than",
                           "layers, and there are",
                           "which must be even",
                           "contradicts",
                           "must be at most",
                           "given twice",
                           "is true as well",
                           "high_freq_factor must",
                           "set bf16.enabled as well",
                           "is not hidden_size",
                           "a scheduler without type",
                           "num_key_value_heads: missing",
                           "missing: write the longest sequence, or",
                           "whose rows count with length one",
                           "and the stage is lower",
                           "experts of model.",
                           "more than the experts of",
                           "groups of model.",
                           "more than a head of keys has",
                           "names layer ",
                           "there is no folder"}) {
    if (message.find(part) != std::string::npos) return true;
  }
  return false;
}

ConfigProblems problems_of(const std::string& text) {
  ConfigProblems problems;
  problems.attempt(
      [&] { load_config_tree(config_tree_of(text, "small.json", {}, problems), {}, problems); });
  return problems;
}

void add_case(Json& cases, const std::string& name, const std::string& config) {
  bool accepted = true;
  for (const ConfigProblem& problem : problems_of(config).in_order("")) {
    if (spans_keys(sentence_of(problem))) return;
    accepted = false;
  }
  cases.push_back({{"name", name}, {"accepted", accepted}, {"config", config}});
}

/// A number that the key takes, if it takes any. In quotes no schema could tell one beyond.
double inside(const NumberRange& range) {
  constexpr double kUsual = 5.0;
  if (range.low <= kUsual && kUsual <= range.high) return kUsual;
  return range.low_open || range.low == 0.0 ? 0.5 * (range.low + range.high) : range.low;
}

/// Integers beyond 64 bits are left out: where a key counts something, they are all of it,
/// elsewhere nothing.
std::vector<std::string> values_for(const Key& key) {
  const bool is_integer = key.kind == KeyKind::kInteger;
  const double fits = is_integer ? std::ceil(inside(key.range)) : inside(key.range);
  std::vector<std::string> values = {"null",
                                     "\"auto\"",
                                     "true",
                                     "0",
                                     "1",
                                     "-1",
                                     "0.5",
                                     "\"\"",
                                     "\"x\"",
                                     "\"true\"",
                                     "[]",
                                     "[1, 2]",
                                     "{}",
                                     fmt::format("\"{}\"", fits),
                                     is_integer ? "1e9" : "1e30"};
  if (key.enabled_block || key.kind == KeyKind::kAny) {
    for (const char* block :
         {R"({"x": 1})", R"({"enabled": true})", R"({"enabled": false})",
          R"({"x": {"enabled": false}})", R"({"x": {"enabled": true}, "enabled": false})"})
      values.emplace_back(block);
  }
  values.insert(values.end(), key.accepted.begin(), key.accepted.end());
  for (const std::string& choice : key.choices)
    values.push_back(json_quote(choice));
  for (const double bound : {key.range.low, key.range.high}) {
    if (std::isfinite(bound) && !(is_integer && bound >= 0x1p53)) {
      values.push_back(fmt::format("{}", bound));
    }
  }
  return values;
}

/// The small config with these settings.
JsonNode small_with(const std::vector<std::string>& setting) {
  JsonNode root = parse_json_document(kSmall, "small.json");
  ConfigProblems none;
  apply_overrides(root, setting, Weights::kIgnored, none);
  none.throw_if_any("small.json");
  return root;
}

void add_shipped(Json& cases) {
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".json") continue;
    const std::string file = entry.path().string();
    ConfigProblems none;
    add_case(cases, file, read_config_tree(file, {}, none).root.dump());
    const LoadedConfig loaded = load_config(file, {});
    add_case(cases, file + ", written back", to_json(loaded));
  }
}

/// Every key of the table, where it applies, set to values of every kind.
void add_mutations(Json& cases) {
  std::vector<Config> configs;
  for (const auto& setting : settings()) {
    ConfigProblems none;
    configs.push_back(
        load_config_tree(config_tree_of(small_with(setting).dump(), "small.json", {}, none), {},
                         none)
            .config);
    none.throw_if_any("small.json");
  }
  for (const Key& key : all_keys()) {
    std::size_t setting = 0;
    while (setting + 1 < configs.size() && !key.applies_in(configs[setting]))
      ++setting;
    std::vector<std::string> paths = key.aliases;
    paths.push_back(key.path);
    for (const std::string& path : paths) {
      for (const std::string& value : values_for(key)) {
        JsonNode root = small_with(settings()[setting]);
        put_value(root, path, parse_json_value(value, "").value());
        add_case(cases, path + "=" + value, root.dump());
      }
    }
  }
}

/// Adds cases of wrong and right keys.
void add_others(Json& cases) {
  for (const char* change : {"stpes=1",
                             "training.stpes=1",
                             "optimizer.params.lr.x=1",
                             "optimizer.params.momentum=0.5",
                             "model.n_embd=64",
                             "model.unheard_of=1",
                             "_comment=why",
                             "$schema=x.json",
                             "scheduler.type=Warmup",
                             "optimizer=null",
                             "model=null",
                             "data=null",
                             "training=null",
                             "data.train=null",
                             "training.steps=null",
                             "model.vocab_size=null",
                             "pipeline=null",
                             "optimizer.type=adamw",
                             "optimizer.type=OneBitAdam",
                             "model.model_type=gemma3"}) {
    const std::string text = change;
    const std::size_t equals = text.find('=');
    const std::string value = text.substr(equals + 1);
    JsonNode root = parse_json_document(kSmall, "small.json");
    JsonNode node = parse_json_value(value, "").value_or(json_node(JsonNode::Kind::kString));
    if (node.is(JsonNode::Kind::kString)) node.text = value;
    ConfigProblems nowhere;
    nowhere.attempt([&] { put_value(root, text.substr(0, equals), node); });
    if (nowhere.empty()) add_case(cases, text, root.dump());
  }
}

}  // namespace

std::string schema_cases() {
  Json all = {{"schema", Json::parse(config_schema())}, {"cases", Json::array()}};
  add_shipped(all["cases"]);
  add_others(all["cases"]);
  add_mutations(all["cases"]);
  return all.dump();
}

}  // namespace dstrain

int main() {
  std::cout << dstrain::schema_cases() << "\n";
}
