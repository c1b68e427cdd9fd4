// Family: what a "model_type" of Hugging Face's config.json stands for: what all its models have in
// common, which keys its config.json has, and what its tensors are called in Hugging Face's files.
// One file a family; a new one is written like llama.cpp and entered in families.inc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/arch/norm_places.h"
#include "engine/config/dropout_config.h"
#include "engine/config/model_spec.h"

namespace dstrain {

enum class KeyNames : std::uint8_t {
  kGpt2,  ///< n_embd, n_head, n_layer, …
  kLlama  ///< hidden_size, num_attention_heads, num_hidden_layers, …
};

/// How a family's keys describe attention windows.
enum class WindowKeys : std::uint8_t {
  kNone,
  kSize,            ///< sliding_window; null: none
  kSwitched,        ///< sliding_window, only if use_sliding_window, from layer max_window_layers on
  kSwitchedSize,    ///< the same in all layers
  kByLayer,         ///< sliding_window, null: none; in the layers that layer_types says
  kSwitchedByLayer  ///< the same, only if use_sliding_window
};
inline bool is_switched(WindowKeys keys) {
  return keys == WindowKeys::kSwitched || keys == WindowKeys::kSwitchedSize ||
         keys == WindowKeys::kSwitchedByLayer;
}
inline bool is_by_layer(WindowKeys keys) {
  return keys == WindowKeys::kByLayer || keys == WindowKeys::kSwitchedByLayer;
}

/// A tensor of Hugging Face's, and those of ours that lie in it.
struct ForeignRow {
  /// The first {} is the block's index, the second one the expert's. Where only ours have the
  /// second, theirs is those of all experts behind each other, and has a dim for them in front.
  std::string theirs;
  bool transposed = false;
  /// Our tensors, stacked by their rows; nullptr where there are fewer. A ForeignRow of which a
  /// model has none is left out.
  std::array<const char*, 3> ours{};
  bool by_heads = false;  ///< stacked head by head: the first head's rows of each, the next's, …
  bool by_rows = false;   ///< the same row by row
};

/// A key of this family's config.json that would make it another model.
struct RefusedKey {
  std::string name;
  std::vector<std::string> accepted;  ///< as JSON: values with which it is off
  std::string why;
};

/// A key with a probability of dropout, and what it is for.
struct DropoutKey {
  std::string name;
  std::vector<float DropoutConfig::*> sites;
};

struct Family {
  /// The model before the keys of its config.json are read: what none of them says, and the
  /// defaults of those that may be absent. Its model_type names the family.
  ModelSpec base;
  NormPlacement norm_placement = NormPlacement::kBeforeBranch;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  KeyNames keys = KeyNames::kLlama;
  /// The family's word for base.activation, where there are several (kernels/math/activation.h) and
  /// the first is not the family's.
  const char* activation_word = "";
  bool has_attention_bias_key = false;  ///< for q, k, v and the output projection together
  bool has_mlp_bias_key = false;
  bool has_use_bias_key = false;  ///< for all of them
  /// Set where transformers, if the key is absent, would take some fixed number of key/value heads,
  /// whatever the number of heads.
  bool needs_key_value_heads = false;
  WindowKeys window = WindowKeys::kNone;
  std::optional<std::int64_t> default_window = 4096;
  std::optional<std::int64_t> default_first_window_layer{};
  /// Without layer_types, every layer whose number, counted from 1, is a multiple of this has no
  /// window. 0: all have one.
  std::int64_t full_layer_every = 0;
  /// Without no_rope_layers, every layer whose number, counted from 1, is a multiple of this has no
  /// rotation; a family with windows by layer then has them there. 0: all rotate, and there is no
  /// such key.
  std::int64_t unrotated_layer_every = 0;
  bool has_window_pattern_key = false;  ///< sliding_window_pattern: full_layer_every
  bool reads_mxfp4 = false;   ///< experts' matrices may come in 4 bits (quantization_config)
  bool has_sinks = false;     ///< each head has a score that belongs to no position
  bool has_cap_keys = false;  ///< those of Gemma: caps of scores and logits, query_pre_attn_scalar
  std::int64_t first_position_row = 0;     ///< of the table of learned positions: position 0's
  bool has_parallel_residual_key = false;  ///< use_parallel_residual
  bool has_key_value_keys = true;  ///< num_key_value_heads and head_dim: else heads share the width
  bool scales_embeddings = false;  ///< by the square root of hidden_size
  bool normalizes_embeddings = false;
  bool has_rope_keys = true;  ///< where it rotates: rope_theta, rope_scaling, rope_parameters
  bool has_rotated_part_key = false;  ///< partial_rotary_factor
  /// Of original_max_position_embeddings, which stands beside rope_scaling and is LongRoPE's. 0:
  /// there is no such key.
  std::int64_t default_original_positions = 0;
  /// Layers with a window are not subject to rope_scaling; rope_parameters are given for both
  /// kinds, each with a rope_theta, for which there is rope_local_base_freq too.
  bool scales_full_layers_only = false;
  /// The family's names of keys that LLaMA calls otherwise, by LLaMA's names. "": it has no such
  /// key.
  std::map<std::string, std::string> spellings{};
  std::map<std::string, std::string> second_spellings{};  ///< of what it has two names for
  /// Written in place of max_position_embeddings, it says that positions are ALiBi's. "": there is
  /// no such key.
  std::string alibi_length_key{};
  bool has_unit_head_key = false;       ///< norm_head
  bool has_normalised_key = false;      ///< norm_topk_prob: of the weights of the experts chosen
  bool has_shared_expert_keys = false;  ///< n_shared_experts, groups, first_k_dense_replace
  std::int64_t default_shared_experts = 2;  ///< of n_shared_experts
  std::int64_t default_dense_layers = 0;    ///< of first_k_dense_replace
  bool has_dense_layer_keys = false;        ///< decoder_sparse_step and mlp_only_layers
  /// Files may have a layer behind the last one, which predicts a further token and which the class
  /// leaves out.
  bool leaves_out_next_layer = false;
  std::vector<DropoutKey> dropouts = {{"attention_dropout", {&DropoutConfig::attention}}};
  std::vector<std::string> silent{};  ///< keys that say nothing here
  std::vector<RefusedKey> refused{};

  std::string huggingface_class;
  /// The name of the class's base model in front of most names, which files of the base model
  /// alone leave out.
  std::string huggingface_prefix = "model.";
  std::vector<ForeignRow> names;  ///< in the order of the model
  /// The same for the tensors as the class holds them, where it saves them otherwise: files and
  /// checkpoints may have either. Empty: it saves what it holds.
  std::vector<ForeignRow> held_names{};

  [[nodiscard]] const std::string& model_type() const { return base.model_type; }
  /// The name that its config.json has for a key of LLaMA's.
  [[nodiscard]] const std::string& key(const std::string& of_llama) const {
    const auto own = spellings.find(of_llama);
    return own == spellings.end() ? of_llama : own->second;
  }
};

/// All families that can be trained.
const std::vector<Family>& families();
/// The family of `model_type`, which must be the name of one.
const Family& family_of(const std::string& model_type);
inline const Family& family_of(const ModelSpec& model) {
  return family_of(model.model_type);
}
/// "model.n_head": where a run's config says what LLaMA's key says of LLaMA.
std::string key_path(const ModelSpec& model, const std::string& of_llama);
/// The key that a feed-forward's width comes from: its own, or the model's width, where the former
/// is always four times that.
struct WidthKey {
  std::string path;
  std::int64_t value;
  std::int64_t times;
};
/// The keys of all widths that feed-forwards of the model have, dense ones' before experts'.
std::vector<WidthKey> feed_forward_keys(const ModelSpec& model);

#define DSTRAIN_FAMILY(name) Family name##_family();
#include "engine/config/arch/families.inc"
#undef DSTRAIN_FAMILY

/// The names of LLaMA's tensors, which others share.
std::vector<ForeignRow> llama_names();
/// The same with norms of queries and keys in every block.
std::vector<ForeignRow> with_query_key_norms(std::vector<ForeignRow> rows);
/// The same with mixtures of experts in place of feed-forwards, of which `mlp` is theirs' name and
/// the others those of an expert's matrices.
struct ExpertNames {
  std::string mlp = "mlp";
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};
std::vector<ForeignRow> with_experts(std::vector<ForeignRow> rows, const ExpertNames& names = {});
/// The same as transformers holds them: one matrix gate‖up and one down for all experts.
std::vector<ForeignRow> with_held_experts(std::vector<ForeignRow> rows);

}  // namespace dstrain
