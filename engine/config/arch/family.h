// Family: what a "model_type" of Hugging Face's config.json stands for: what all its models have in
// common, which keys its config.json has, and what its tensors are called in Hugging Face's files.
// One file a family; a new one is written like llama.cpp and entered in family.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/arch/architecture.h"

namespace dstrain {

enum class KeyNames : std::uint8_t {
  kGpt2,  ///< n_embd, n_head, n_layer, …
  kLlama  ///< hidden_size, num_attention_heads, num_hidden_layers, …
};

/// Keys of an attention window.
enum class WindowKeys : std::uint8_t {
  kNone,
  kSize,     ///< sliding_window; null: none
  kSwitched  ///< sliding_window, only if use_sliding_window, from layer max_window_layers on
};

/// One tensor of Hugging Face's, and ours that lie in it.
struct ForeignRow {
  std::string theirs;  ///< {} is the block's index
  bool transposed = false;
  /// Stacked by their rows; nullptr: fewer. A row of which a model has none is left out.
  std::array<const char*, 3> ours{};
};

/// A key of this family's config.json with which it would be another model.
struct RefusedKey {
  std::string name;
  std::vector<std::string> accepted;  ///< as JSON: values with which it is off
  std::string why;
};

struct Family {
  /// The model before the keys of its config.json are read: what none of them says, and the
  /// defaults of those that may be absent. Its model_type names the family.
  ModelSpec base;
  NormPlacement norm_placement = NormPlacement::kBeforeBranch;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  KeyNames keys = KeyNames::kLlama;
  bool has_attention_bias_key = false;  ///< for q, k, v and the output projection together
  bool has_mlp_bias_key = false;
  /// Absent, transformers would take some number of key/value heads, whatever the number of heads.
  bool needs_key_value_heads = false;
  WindowKeys window = WindowKeys::kNone;
  std::int64_t default_window = 4096;
  std::optional<std::int64_t> default_first_window_layer{};
  std::vector<RefusedKey> refused{};

  std::string huggingface_class;
  /// The name of the class's base model in front of most names, which files of the base model
  /// alone leave out.
  std::string huggingface_prefix = "model.";
  std::vector<ForeignRow> names;  ///< in the order of the model

  [[nodiscard]] const std::string& model_type() const { return base.model_type; }
};

/// All that can be trained.
const std::vector<Family>& families();
/// `model_type` is one of theirs.
const Family& family_of(const std::string& model_type);
inline const Family& family_of(const ModelSpec& model) {
  return family_of(model.model_type);
}
/// Whether its config.json has GPT-2's names of keys.
inline bool has_gpt2_keys(const ModelSpec& model) {
  return family_of(model).keys == KeyNames::kGpt2;
}

// The families, each in a file of its name; Mistral in LLaMA's.
Family gpt2_family();
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family olmo2_family();

/// The names of LLaMA's tensors, which others share.
std::vector<ForeignRow> llama_names();

}  // namespace dstrain
