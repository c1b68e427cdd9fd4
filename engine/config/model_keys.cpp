// The keys of a Hugging Face config.json, old spellings and new. The model's family decides which
// of them it has (engine/config/arch/family.h).
#include <algorithm>
#include <set>

#include "engine/config/family_keys.h"
#include "engine/config/model_families.h"

namespace dstrain {
namespace {

bool has_window_keys(const Family& family) {
  return family.window != WindowKeys::kNone;
}
bool has_rotated_part(const Family& family) {
  return family.has_rotated_part_key;
}
bool has_key_value_keys(const Family& family) {
  return is_rope_family(family) && family.has_key_value_keys;
}
bool has_parallel_residual(const Family& family) {
  return family.has_parallel_residual_key;
}
bool is_rope_without_part(const Family& family) {
  return is_rope_family(family) && !has_rotated_part(family);
}
bool has_unit_head(const Family& family) {
  return family.has_unit_head_key;
}
bool has_attention_bias(const Family& family) {
  return family.has_attention_bias_key;
}
bool has_mlp_bias(const Family& family) {
  return family.has_mlp_bias_key;
}
bool has_use_bias(const Family& family) {
  return family.has_use_bias_key;
}

bool reads_mxfp4(const Family& family) {
  return family.reads_mxfp4;
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

/// null means as many as attention heads; where the key is absent, some families have a default
/// other than ours.
Key num_key_value_heads() {
  Key key = derived_size("num_key_value_heads", &ModelSpec::num_key_value_heads);
  key.null_is_value = true;
  return for_families(key, has_key_value_keys);
}

/// LLaMA's attention_bias is one switch for q, k, v and the output projection.
Key attention_bias() {
  Key key = kModel.field("attention_bias", {}, &ModelSpec::qkv_bias);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.model.qkv_bias = node.boolean;
    draft.config.model.attention_output_bias = node.boolean;
  };
  return for_families(key, has_attention_bias);
}

/// StarCoder 2 and OPT have one switch for all biases.
Key use_bias(const std::string& name) {
  Key key = kModel.field(name, {}, &ModelSpec::qkv_bias);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    ModelSpec& model = draft.config.model;
    model.qkv_bias = model.attention_output_bias = model.mlp_bias = node.boolean;
  };
  return key;
}

/// OPT's key; where it differs from the width, there are projections before and after the blocks.
Key word_embed_proj_dim() {
  Key key = silent("model.word_embed_proj_dim", KeyKind::kInteger);
  key.set = [](ConfigDraft& draft, const JsonNode& node) { draft.embedding_width = node.integer; };
  return for_families(key, [](const Family& family) { return family.model_type() == "opt"; });
}

/// One key for each name; families that have it may mean different elements.
std::vector<Key> dropout_keys() {
  const auto key_of = [](const Family& family, const std::string& name) -> const DropoutKey* {
    const auto found = std::find_if(family.dropouts.begin(), family.dropouts.end(),
                                    [&](const DropoutKey& key) { return key.name == name; });
    return found == family.dropouts.end() ? nullptr : &*found;
  };
  std::vector<Key> keys;
  std::set<std::string> names;
  for (const Family& of_first : families()) {
    for (const DropoutKey& first : of_first.dropouts) {
      const std::string& name = first.name;
      if (!names.insert(name).second) continue;
      Key key{.path = "model." + name, .kind = KeyKind::kNumber, .range = fraction_below_one()};
      key.set = [=](ConfigDraft& draft, const JsonNode& node) {
        const DropoutKey* const own = key_of(family_of(draft.config.model), name);
        if (own == nullptr) return;
        for (const auto site : own->sites) {
          draft.config.dropout.*site = static_cast<float>(node.number);
        }
      };
      key.get = [=](const Config& c) {
        const DropoutKey* const own = key_of(family_of(c.model), name);
        return own == nullptr ? "" : json_of(c.dropout.*own->sites.front());
      };
      keys.push_back(for_families(
          std::move(key), [=](const Family& family) { return key_of(family, name) != nullptr; }));
    }
  }
  return keys;
}

/// A key of ours, written by hand, or in place of a folder that holds weights.
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

/// A switch of other families, which must be off.
Key no_switch(const char* path, const FamilyTest& has) {
  const std::string why = fmt::format("only {} configs have this switch", names_of(has, "'s"));
  return for_families(refused(path, {"false"}, why), [has](const Family& family) {
    return is_rope_family(family) && !has(family);
  });
}

/// Keys that only one family refuses.
std::vector<Key> refused_keys() {
  std::vector<Key> keys;
  for (const Family& family : families()) {
    const auto add = [&](Key key) {
      keys.push_back(for_families(std::move(key), [type = family.model_type()](const Family& one) {
        return one.model_type() == type;
      }));
    };
    if (is_rope_family(family) && !has_window_keys(family)) {
      add(refused("model.sliding_window", {},
                  family.model_type() + " attends to the whole sequence"));
    }
    for (const RefusedKey& key : family.refused)
      add(refused("model." + key.name, key.accepted, key.why));
  }
  return keys;
}

std::vector<Key> llama_keys() {
  std::vector<Key> keys;
  const auto add = [&](const std::vector<Key>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  add(spelled("hidden_size", has_llama_keys, [](const std::string& name) {
    return model_size(name, &ModelSpec::hidden_size, "the model's width, for example 4096");
  }));
  add(spelled("intermediate_size", has_llama_keys, [](const std::string& name) {
    return model_size(name, &ModelSpec::intermediate_size,
                      "the width inside the MLP, for example 11008");
  }));
  add(spelled("num_hidden_layers", has_llama_keys, [](const std::string& name) {
    return model_size(name, &ModelSpec::num_layers, "the number of blocks, for example 32",
                      kMostLayers);
  }));
  add(spelled("num_attention_heads", has_llama_keys, [](const std::string& name) {
    return model_size(name, &ModelSpec::num_heads, "the number of attention heads, for example 32");
  }));
  add({
      num_key_value_heads(),
      for_families(derived_size("head_dim", &ModelSpec::head_dim), has_key_value_keys),
  });
  add(length_keys());
  add(spelled("rms_norm_eps", has_llama_keys, [](const std::string& name) {
    return kModel.field(name, above(0), &ModelSpec::norm_epsilon);
  }));
  add(spelled("rope_theta", has_rope_keys, [](const std::string& name) {
    return kModel.field(name, above(0), &ModelSpec::rope_theta);
  }));
  add(spelled("partial_rotary_factor", has_rotated_part, [](const std::string& name) {
    return kModel.field(name, {.low = 0, .high = 1, .low_open = true}, &ModelSpec::rotated_part);
  }));
  add(rope_keys());
  add(spelled("hidden_act", has_llama_keys,
              [](const std::string& name) { return activation_key("model." + name); }));
  add({
      attention_bias(),
      for_families(kModel.field("mlp_bias", {}, &ModelSpec::mlp_bias), has_mlp_bias),
      no_switch("model.attention_bias", has_attention_bias),
      no_switch("model.mlp_bias", has_mlp_bias),
      for_families(kModel.field("use_parallel_residual", {}, &ModelSpec::parallel_branches),
                   has_parallel_residual),
  });
  add(spelled("use_bias", has_use_bias, use_bias));
  add(window_keys());
  add(score_keys());
  add(latent_keys());
  add(experts_keys());
  add({word_embed_proj_dim()});
  add({
      for_families(
          refused("model.partial_rotary_factor", {"1"}, "this family rotates each head as a whole"),
          is_rope_without_part),
      for_rope(silent("model.pretraining_tp")),
      for_rope(silent("model.max_sequence_length")),
  });
  return keys;
}

std::vector<Key> silent_keys() {
  return listed_keys(
      [](const Family& family) -> const auto& { return family.silent; },
      [](const std::string& name) { return silent("model." + name); });
}

/// The format of the weights in a family's files: some are published in 4 bits, and read so.
Key mxfp4_weights() {
  Key key = silent("model.quantization_config");
  key.shape = R"({"type": "object", "required": ["quant_method"],
                  "properties": {"quant_method": {"const": "mxfp4"}}})";
  key.set = [](ConfigDraft&, const JsonNode& node) {
    const JsonNode* const method = node.find("quant_method");
    if (method == nullptr || !method->is_text("mxfp4")) {
      throw_config_error(method == nullptr ? node.where : method->where,
                         "model.quantization_config.quant_method",
                         "must be \"mxfp4\", in which weights are read, found " +
                             (method == nullptr ? std::string("nothing") : method->describe()));
    }
  };
  return for_families(key, reads_mxfp4);
}

/// The class of a Hugging Face config.json, of which one thing is taken: whether it scores.
Key architectures() {
  Key key = silent("model.architectures");
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const JsonNode& name : node.items) {
      if (name.is(JsonNode::Kind::kString) && name.text.ends_with("ForSequenceClassification")) {
        draft.config.model.scores = true;
      }
    }
  };
  return key;
}

/// dstrain's own; shown where it is true, as other models have none.
Key score_head() {
  Key key = null_is_default(kModel.field("score_head", {}, &ModelSpec::scores));
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.model.scores = draft.config.model.scores || node.boolean;
  };
  key.get = [](const Config& config) -> std::string {
    return config.model.scores ? "true" : std::string();
  };
  return key;
}

/// dstrain's own likewise: that of "ppo".
Key value_head() {
  Key key = null_is_default(kModel.field("value_head", {}, &ModelSpec::values));
  key.get = [](const Config& config) -> std::string {
    return config.model.values ? "true" : std::string();
  };
  return key;
}

}  // namespace

std::vector<Key> model_keys() {
  std::vector<Key> keys = {
      model_type(),
      model_size("vocab_size", &ModelSpec::vocab_size,
                 "the number of token ids, for example 256 for bytes"),
  };
  for (const auto& part :
       {llama_keys(), refused_keys(), gpt2_keys(), dropout_keys(), silent_keys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  keys.push_back(kModel.field("tie_word_embeddings", {}, &ModelSpec::tied_embeddings));
  keys.push_back(architectures());
  keys.push_back(score_head());
  keys.push_back(value_head());
  keys.push_back(for_families(kModel.field("norm_head", {}, &ModelSpec::unit_head), has_unit_head));
  for (Key& key : spelled(
           "initializer_range", [](const Family&) { return true; },
           [](const std::string& name) {
             return kModel.field(name, above(0), &ModelSpec::initializer_range);
           })) {
    keys.push_back(std::move(key));
  }
  keys.push_back(initial_weights());
  keys.push_back(
      for_families(refused("model.quantization_config", {}, "dstrain trains in fp32 or bf16"),
                   [](const Family& family) { return !reads_mxfp4(family); }));
  keys.push_back(mxfp4_weights());
  for (const char* name : {"torch_dtype",
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
