// The one table of keys: every key that a run's JSON file may hold, with its type, range, status
// and its way into and out of Config. Reading, --print-config, the resolved file, did-you-mean and
// the tests all walk it, so a key cannot be accepted in one place and forgotten in another.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/json_text.h"
#include "engine/config/rope_block.h"

namespace dstrain {

/// A config being read: what the keys have set so far, and what only the final checks need.
struct ConfigDraft {
  Config config;
  std::string optimizer_type;  ///< "Adam" or "AdamW", which may mean the same
  bool adam_w_mode_is_false = false;
  bool torch_adam = false;
  bool bf16_is_off = false;                ///< bf16.enabled is false, and not only absent
  std::string amp_level = "O1";            ///< amp.opt_level
  std::optional<double> amp_static_scale;  ///< amp.loss_scale
  bool autocasts_to_f16 = false;           ///< torch_autocast.dtype
  std::set<std::string> automatic;         ///< paths of keys that are "auto"
  bool uses_sliding_window = false;
  std::optional<std::int64_t> sliding_window;      ///< positions; empty: unlimited
  std::optional<std::int64_t> first_window_layer;  ///< Qwen2's max_window_layers
  std::vector<bool> layer_has_window;              ///< from "layer_types"; empty: not written
  std::optional<RopeBlock> rope_scaling;           ///< from "rope_scaling"
  std::optional<RopeBlock> rope_parameters;        ///< from "rope_parameters", the newer spelling
  std::optional<std::int64_t> original_positions;  ///< from "original_max_position_embeddings"
  std::vector<bool> rotary_layers;                 ///< from "no_rope_layers"; empty: not written
  std::optional<std::int64_t> embedding_width;     ///< from "word_embed_proj_dim"
  std::optional<std::int64_t> full_layer_every;    ///< from "sliding_window_pattern"
  std::optional<std::int64_t> unrotated_layer_every;  ///< from "no_rope_layer_interval"
  std::optional<std::int64_t> experts_every;          ///< from "decoder_sparse_step"
  std::optional<std::int64_t> first_dense_layers;     ///< from "first_k_dense_replace"
  std::optional<std::int64_t> shared_experts;         ///< from "n_shared_experts"
  bool chooses_groups = false;                        ///< from "topk_method"
  std::vector<std::int64_t> dense_layers;             ///< from "mlp_only_layers"
  std::map<std::string, std::string> derived;  ///< path → "hidden_size / num_attention_heads"
  std::vector<std::string> notices;            ///< what keys mean here that mean more elsewhere
};

/// The origin of values that a config leaves to Hugging Face's Trainer, whose documented defaults
/// they are.
inline constexpr const char* kTrainerDefault = "default (Hugging Face's Trainer)";

/// The keys that were written; aliases stand under their key's own path.
class WrittenKeys {
 public:
  explicit WrittenKeys(const JsonNode& root) : root_(root) {}

  void add(const std::string& path, const JsonNode& node) { nodes_[path] = &node; }
  [[nodiscard]] bool has(const std::string& path) const { return nodes_.contains(path); }
  /// Whether the key is written, even if its value is null or "auto" and so says nothing.
  [[nodiscard]] bool mentions(const std::string& path) const;
  /// "x.json:3:7", or the position of the block where the key should be.
  [[nodiscard]] std::string where(const std::string& path) const;
  /// For --print-config: as where(), but "--set" without its text. Empty if not written.
  [[nodiscard]] std::string origin(const std::string& path) const;

 private:
  const JsonNode& root_;
  std::map<std::string, const JsonNode*> nodes_;
};

enum class KeyKind : std::uint8_t { kBool, kInteger, kNumber, kString, kAny };

enum class KeyStatus : std::uint8_t {
  kHonoured,
  kNoEffect,  ///< accepted; a line at start says so
  kRefused,   ///< only the values in `accepted` (the feature is off) are taken
  kSilent     ///< information for other programs, or a setting of a feature that is off
};

enum class AutoRule : std::uint8_t {
  kError,
  kDefault,  ///< "auto" means that the key is absent
  kValue     ///< "auto" is a value like any other
};

struct NumberRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};
constexpr NumberRange at_least(double low) {
  return {.low = low};
}
constexpr NumberRange above(double low) {
  return {.low = low, .low_open = true};
}
constexpr NumberRange between(double low, double high) {
  return {.low = low, .high = high};
}
constexpr NumberRange fraction_below_one() {
  return {.low = 0, .high = 1, .high_open = true};
}

using KeyCondition = std::function<bool(const Config&)>;

struct Key {
  std::string path{};  ///< "optimizer.params.lr"
  KeyKind kind = KeyKind::kAny;
  KeyStatus status = KeyStatus::kHonoured;
  NumberRange range{};
  std::vector<std::string> choices{};             ///< of a string; empty: any
  std::map<std::string, std::string> synonyms{};  ///< other spellings of choices
  std::vector<std::string> accepted{};  ///< as JSON text: values that are fine whatever the status
  std::vector<std::string> names_in_any_case{};  ///< of a string that `set` checks
  std::string shape{};         ///< JSON Schema of the values, where the type does not say it all
  bool enabled_block = false;  ///< accepted unless it says "enabled": true, at any depth
  bool warns = false;          ///< kNoEffect: the file asks for more than nothing
  bool offloads = false;       ///< a warning where offloading is ignored, but for `accepted`
  std::string note{};     ///< why it is refused or has no effect; of an honoured key what its name
                          ///< does not say
  std::string missing{};  ///< what to write if it is absent; empty: it may be
  std::string default_origin = "default";
  std::vector<std::string> aliases{};
  std::map<std::string, std::string> unset_by{};  ///< alias → JSON text with which it says nothing
  AutoRule auto_rule = AutoRule::kError;
  std::string auto_value{};  ///< as JSON text: what Hugging Face's Trainer puts for "auto"
  bool null_is_absent = false;
  bool null_is_value = false;  ///< it says something that absence does not
  KeyCondition applies{};      ///< empty: always
  std::string applies_to{};    ///< "WarmupCosineLR", for the error
  std::function<void(ConfigDraft&, const JsonNode&)> set{};  ///< after type and range are checked
  std::function<std::string(const Config&)> get{};  ///< as JSON; "" where there is no value yet

  [[nodiscard]] bool applies_in(const Config& config) const { return !applies || applies(config); }
};

/// Begins `where` of values that come from the command line.
inline constexpr const char* kOverridePrefix = "--set ";
inline bool is_override(const JsonNode& node) {
  return node.where.starts_with(kOverridePrefix);
}

/// The value at a dotted path, or nullptr.
const JsonNode* find_path(const JsonNode& root, const std::string& path);

/// All keys, in the order of the contract. Keys that decide which others apply (model_type,
/// scheduler.type) have no condition of their own. DeepSpeed's may all be null or "auto", and are
/// then as if absent where they say nothing else.
const std::vector<Key>& all_keys();

// The parts of the table, by who defines the keys' meaning.
std::vector<Key> batch_keys();  ///< DeepSpeed's, as all up to the ignored ones
std::vector<Key> elasticity_keys();
std::vector<Key> peft_keys();
std::vector<Key> quantization_keys();
std::vector<Key> preference_keys();
std::vector<Key> grpo_keys();
std::vector<Key> ppo_keys();
std::vector<Key> precision_keys();       ///< fp16, bf16, data_types, what is on the wire
std::vector<Key> automatic_cast_keys();  ///< amp, torch_autocast: other ways to say fp16 and bf16
std::vector<Key> zero_keys();
std::vector<Key> recompute_keys();  ///< activation_checkpointing
std::vector<Key> optimizer_keys();
std::vector<Key> rate_keys();
std::vector<Key> scheduler_keys();
std::vector<Key> curriculum_keys();
std::vector<Key> parallel_keys();  ///< pipeline, tensor and sequence parallelism
std::vector<Key> reporting_keys();
std::vector<Key> monitor_keys();
std::vector<Key> deepspeed_ignored_keys();  ///< the rest of DeepSpeed's: without effect or refused
std::vector<Key> model_keys();              ///< a Hugging Face config.json
std::vector<Key> run_keys();                ///< data, training, checkpoint

}  // namespace dstrain
