// The keys of a Hugging Face config.json, old spellings and new. Which of them a model has is its
// family's to say (engine/config/arch/family.h).
#include "engine/config/arch/family.h"
#include "engine/config/key_builders.h"
#include "engine/config/model_families.h"

namespace dstrain {
namespace {

constexpr double kLargestSize = 1e12;
/// Blocks are planned one by one; the deepest transformer published (DeepNet, Wang et al. 2022) has
/// so many.
constexpr double kMostLayers = 1000;

/// "llama, mistral and qwen2"
std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    list += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return list;
}

template <typename Has>
std::vector<std::string> names_of(Has has, const std::string& ending = "") {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (has(family)) names.push_back(family.model_type() + ending);
  }
  return names;
}

/// Of the families for which `has` is true.
template <typename Has>
Key for_families(Key key, Has has) {
  return only_for(std::move(key), listed(names_of(has)),
                  [has](const Config& c) { return has(family_of(c.model)); });
}

bool is_gpt2(const Family& family) {
  return family.keys == KeyNames::kGpt2;
}
bool is_rope_family(const Family& family) {
  return !is_gpt2(family);
}
bool has_window(const Family& family) {
  return family.window != WindowKeys::kNone;
}
bool has_window_switch(const Family& family) {
  return family.window == WindowKeys::kSwitched;
}
bool has_attention_bias(const Family& family) {
  return family.has_attention_bias_key;
}
bool has_mlp_bias(const Family& family) {
  return family.has_mlp_bias_key;
}

Key for_gpt2(Key key) {
  return for_families(std::move(key), is_gpt2);
}
Key for_rope(Key key) {
  return for_families(std::move(key), is_rope_family);
}

Key model_type() {
  Key key{.path = "model.model_type", .kind = KeyKind::kString};
  key.choices = model_families();
  key.missing = "write \"model_type\": ";
  for (std::size_t i = 0; i < key.choices.size(); ++i) {
    key.missing += (i == 0                        ? ""
                    : i + 1 == key.choices.size() ? " or "
                                                  : ", ") +
                   json_quote(key.choices[i]);
  }
  key.set = [](ConfigDraft& draft, const JsonNode& node) { set_model_family(draft, node.text); };
  key.get = [](const Config& c) { return json_quote(c.model.model_type); };
  return key;
}

template <typename Access>
Key size(const char* name, Access access, std::string what, double most = kLargestSize) {
  return required(field(std::string("model.") + name, between(1, most), access),
                  "write " + std::move(what));
}

/// A size that null or absence leaves to finish_model().
template <typename Access>
Key derived_size(const char* name, Access access) {
  return null_is_default(field(std::string("model.") + name, between(1, kLargestSize), access));
}

/// null says: as many as attention heads; absent, some families have a default that is not ours.
Key num_key_value_heads() {
  Key key = derived_size(
      "num_key_value_heads", [](auto& c) -> auto& { return c.model.num_key_value_heads; });
  key.null_is_value = true;
  return for_rope(key);
}

/// attention_bias of LLaMA is one switch for q, k, v and the output projection.
Key attention_bias() {
  Key key = field(
      "model.attention_bias", {}, [](auto& c) -> auto& { return c.model.qkv_bias; });
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.model.qkv_bias = node.boolean;
    draft.config.model.attention_output_bias = node.boolean;
  };
  return for_families(key, has_attention_bias);
}

Key activation(const char* path, std::vector<std::string> accepted, std::string only) {
  Key key = refused(path, accepted, std::move(only));
  key.get = [accepted](const Config& /*c*/) { return accepted.front(); };
  return key;
}

Key dropout(const char* path) {
  Key key = no_effect(path, KeyKind::kNumber, "dstrain trains without dropout");
  key.range = fraction_below_one();
  key.accepted = {"0"};
  return key;
}

Key sliding_window() {
  Key key{.path = "model.sliding_window", .kind = KeyKind::kAny, .auto_rule = AutoRule::kDefault};
  key.shape = R"({"type": "integer", "minimum": 1, "maximum": 9223372036854775807})";
  key.null_is_value = true;  // unlimited; absent: the family's default
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (!node.is(JsonNode::Kind::kNull) && node.integer.value_or(0) < 1) {
      throw_config_error(node.where, "model.sliding_window",
                         "must be null or an integer of at least 1, found " + node.describe());
    }
    draft.sliding_window = node.integer;
  };
  key.get = [](const Config& c) -> std::string {
    return c.model.attention_window > 0 ? std::to_string(c.model.attention_window)
           : family_of(c.model).window == WindowKeys::kSize ? "null"
                                                            : "";
  };
  return for_families(key, has_window);
}

Key use_sliding_window() {
  Key key{.path = "model.use_sliding_window",
          .kind = KeyKind::kBool,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.uses_sliding_window = node.boolean;
  };
  key.get = [](const Config& c) { return c.model.attention_window > 0 ? "true" : ""; };
  return for_families(key, has_window_switch);
}

Key max_window_layers() {
  Key key{.path = "model.max_window_layers",
          .kind = KeyKind::kInteger,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.first_window_layer = node.integer;
  };
  key.get = [](const Config& c) {
    return c.model.attention_window > 0 ? std::to_string(c.model.first_window_layer)
                                        : std::string();
  };
  return for_families(key, has_window_switch);
}

Key layer_types() {
  Key key = silent("model.layer_types");
  key.shape = R"({"items": {"enum": ["full_attention", "sliding_attention"]}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const JsonNode& item : node.items) {
      const bool slides = item.is_text("sliding_attention");
      if (!slides && !item.is_text("full_attention")) {
        throw_config_error(
            item.where, "model.layer_types",
            "there are \"full_attention\" and \"sliding_attention\", found " + item.describe());
      }
      draft.layer_has_window.push_back(slides);
    }
  };
  return for_rope(key);
}

Key rope_scaling() {
  Key key{.path = "model.rope_scaling", .kind = KeyKind::kAny};
  key.shape = rope_scaling_shape(/*theta=*/false);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.rope_scaling = read_rope_scaling("model.rope_scaling", node, nullptr);
  };
  key.get = [](const Config& c) { return rope_scaling_json(c.model.rope_scaling); };
  return for_rope(null_is_default(key));
}

Key rope_parameters() {
  Key key = silent("model.rope_parameters");
  key.shape = rope_scaling_shape(/*theta=*/true);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.rope_parameters =
        read_rope_scaling("model.rope_parameters", node, &draft.rope_parameters_theta);
  };
  return for_rope(key);
}

/// Ours: written by hand, or in place of a folder that holds weights.
Key initial_weights() {
  Key key{.path = "model.initial_weights", .kind = KeyKind::kString};
  key.shape = kSomeText;
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (node.text.empty()) {
      throw_config_error(node.where, "model.initial_weights",
                         "is empty; write a folder, or null to train from scratch");
    }
    draft.config.initial_weights = node.text;
  };
  key.get = [](const Config& c) {
    return c.initial_weights.empty() ? "" : json_quote(c.initial_weights);
  };
  return null_is_default(key);
}

std::vector<Key> gpt2_keys() {
  const char* const kTanh =
      "the tanh form of GELU (\"gelu_new\") is the only activation of this version's gpt2";
  return {
      for_gpt2(also_called(size(
                               "n_embd", [](auto& c) -> auto& { return c.model.hidden_size; },
                               "the model's width, for example 768"),
                           {"model.hidden_size"})),
      for_gpt2(also_called(size(
                               "n_layer", [](auto& c) -> auto& { return c.model.num_layers; },
                               "the number of blocks, for example 12", kMostLayers),
                           {"model.num_hidden_layers"})),
      for_gpt2(also_called(size(
                               "n_head", [](auto& c) -> auto& { return c.model.num_heads; },
                               "the number of attention heads, for example 12"),
                           {"model.num_attention_heads"})),
      for_gpt2(
          also_called(size(
                          "n_positions", [](auto& c) -> auto& { return c.model.max_positions; },
                          "the longest sequence, for example 1024"),
                      {"model.max_position_embeddings"})),
      for_gpt2(derived_size(
          "n_inner", [](auto& c) -> auto& { return c.model.intermediate_size; })),
      for_gpt2(field(
          "model.layer_norm_epsilon", above(0),
          [](auto& c) -> auto& { return c.model.norm_epsilon; })),
      for_gpt2(activation("model.activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""},
                          kTanh)),
      for_gpt2(dropout("model.resid_pdrop")),
      for_gpt2(dropout("model.embd_pdrop")),
      for_gpt2(dropout("model.attn_pdrop")),
      for_gpt2(refused("model.scale_attn_weights", {"true"},
                       "scores are always divided by the square root of the head's size")),
      for_gpt2(refused("model.scale_attn_by_inverse_layer_idx", {"false"},
                       "scaling attention by the layer's number is not in this version yet")),
      for_gpt2(
          refused("model.add_cross_attention", {"false"}, "dstrain's models are decoders only")),
      for_gpt2(silent("model.reorder_and_upcast_attn")),
      for_gpt2(silent("model.n_ctx")),
      for_gpt2(silent("model.output_past")),
      for_gpt2(silent("model.predict_special_tokens")),
      for_gpt2(silent("model.summary_type")),
      for_gpt2(silent("model.summary_use_proj")),
      for_gpt2(silent("model.summary_activation")),
      for_gpt2(silent("model.summary_proj_to_labels")),
      for_gpt2(silent("model.summary_first_dropout")),
  };
}

/// A switch of other families.
template <typename Has>
Key no_switch(const char* path, Has has) {
  const std::string why =
      fmt::format("only {} configs have this switch", listed(names_of(has, "'s")));
  return for_families(refused(path, {"false"}, why), [has](const Family& family) {
    return is_rope_family(family) && !has(family);
  });
}

/// What only one family refuses.
std::vector<Key> refused_keys() {
  std::vector<Key> keys;
  for (const Family& family : families()) {
    const auto add = [&](Key key) {
      keys.push_back(for_families(std::move(key), [type = family.model_type()](const Family& one) {
        return one.model_type() == type;
      }));
    };
    if (is_rope_family(family) && !has_window(family)) {
      add(refused("model.sliding_window", {},
                  family.model_type() + " attends to the whole sequence"));
    }
    for (const RefusedKey& key : family.refused)
      add(refused("model." + key.name, key.accepted, key.why));
  }
  return keys;
}

std::vector<Key> rope_family_keys() {
  const char* const kSilu = "SiLU (\"silu\") is the only activation of this family in this version";
  return {
      for_rope(size(
          "hidden_size", [](auto& c) -> auto& { return c.model.hidden_size; },
          "the model's width, for example 4096")),
      for_rope(size(
          "intermediate_size", [](auto& c) -> auto& { return c.model.intermediate_size; },
          "the width inside the MLP, for example 11008")),
      for_rope(size(
          "num_hidden_layers", [](auto& c) -> auto& { return c.model.num_layers; },
          "the number of blocks, for example 32", kMostLayers)),
      for_rope(size(
          "num_attention_heads", [](auto& c) -> auto& { return c.model.num_heads; },
          "the number of attention heads, for example 32")),
      num_key_value_heads(),
      for_rope(derived_size(
          "head_dim", [](auto& c) -> auto& { return c.model.head_dim; })),
      for_rope(size(
          "max_position_embeddings", [](auto& c) -> auto& { return c.model.max_positions; },
          "the longest sequence, for example 4096")),
      for_rope(field(
          "model.rms_norm_eps", above(0), [](auto& c) -> auto& { return c.model.norm_epsilon; })),
      for_rope(field(
          "model.rope_theta", above(0), [](auto& c) -> auto& { return c.model.rope_theta; })),
      rope_scaling(),
      rope_parameters(),
      for_rope(activation("model.hidden_act", {"\"silu\"", "\"swish\""}, kSilu)),
      attention_bias(),
      for_families(field(
                       "model.mlp_bias", {}, [](auto& c) -> auto& { return c.model.mlp_bias; }),
                   has_mlp_bias),
      no_switch("model.attention_bias", has_attention_bias),
      no_switch("model.mlp_bias", has_mlp_bias),
      for_rope(dropout("model.attention_dropout")),
      sliding_window(),
      use_sliding_window(),
      max_window_layers(),
      layer_types(),
      for_rope(refused("model.partial_rotary_factor", {"1"},
                       "rotating a part of each head is not in this version yet")),
      for_rope(silent("model.pretraining_tp")),
      for_rope(silent("model.max_sequence_length")),
  };
}

}  // namespace

std::vector<Key> model_keys() {
  std::vector<Key> keys = {
      model_type(),
      size(
          "vocab_size", [](auto& c) -> auto& { return c.model.vocab_size; },
          "the number of token ids, for example 256 for bytes"),
  };
  for (const auto& part : {rope_family_keys(), refused_keys(), gpt2_keys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  keys.push_back(field(
      "model.tie_word_embeddings", {}, [](auto& c) -> auto& { return c.model.tied_embeddings; }));
  keys.push_back(field(
      "model.initializer_range", above(0),
      [](auto& c) -> auto& { return c.model.initializer_range; }));
  keys.push_back(initial_weights());
  keys.push_back(refused("model.quantization_config", {}, "dstrain trains in fp32 or bf16"));
  for (const char* name : {"architectures",
                           "torch_dtype",
                           "dtype",
                           "bos_token_id",
                           "eos_token_id",
                           "pad_token_id",
                           "sep_token_id",
                           "cls_token_id",
                           "decoder_start_token_id",
                           "unk_token_id",
                           "transformers_version",
                           "use_cache",
                           "_name_or_path",
                           "name_or_path",
                           "_commit_hash",
                           "_attn_implementation",
                           "attn_implementation",
                           "_attn_implementation_autoset",
                           "id2label",
                           "label2id",
                           "num_labels",
                           "_num_labels",
                           "problem_type",
                           "task_specific_params",
                           "finetuning_task",
                           "tokenizer_class",
                           "prefix",
                           "return_dict",
                           "output_attentions",
                           "output_hidden_states",
                           "is_encoder_decoder",
                           "is_decoder",
                           "gradient_checkpointing",
                           "chunk_size_feed_forward",
                           "auto_map",
                           "_notes"}) {
    keys.push_back(silent(std::string("model.") + name));
  }
  return keys;
}

}  // namespace dstrain
