#include "engine/checkpoint/foreign/huggingface/model_config.h"

#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/config/arch/family.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

std::string_view torch_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

/// "LlamaForCausalLM", or "LlamaForSequenceClassification" of a model that scores.
std::string class_of(const ModelSpec& model) {
  std::string name = family_of(model).huggingface_class;
  if (!model.scores) return name;
  for (const std::string_view end : {"ForCausalLM", "LMHeadModel"}) {
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  }
  return name + "ForSequenceClassification";
}

/// The rotary frequencies once more, as transformers 5 spells them.
Json rope_parameters(const Family& family, const ModelSpec& model, const Json& keys) {
  const Json plain{{"rope_type", "default"}, {"rope_theta", model.rope_theta}};
  Json rope = plain;
  rope.update(keys.value("rope_scaling", Json::object()));
  if (family.has_rotated_part_key) {
    rope["partial_rotary_factor"] = model.rotated_part;
  }
  if (family.scales_full_layers_only) {
    Json of_window = plain;
    if (model.window_rope_theta > 0.0) {
      of_window["rope_theta"] = model.window_rope_theta;
    }
    return {{"full_attention", rope}, {"sliding_attention", of_window}};
  }
  return rope;
}

Json written_anew(const ModelSpec& model) {
  const Family& family = family_of(model);
  Json keys{{"architectures", {family.huggingface_class}}};
  keys.update(Json::parse(model_json(model)));
  if (model.position == PositionKind::kRope && family.has_rope_keys) {
    keys["rope_parameters"] = rope_parameters(family, model, keys);
  }
  for (const DropoutKey& dropout : family.dropouts) {
    keys[dropout.name] = 0.0;  // a run's, which weights say nothing of
  }
  if (model.experts.z_coefficient == 0.0F) {
    keys.erase("router_z_loss_coef");  // which these classes know nothing of
  }
  // transformers 5 takes no integer for these.
  for (const char* number : {"initializer_range", "router_aux_loss_coef", "router_z_loss_coef",
                             "swiglu_limit", "routed_scaling_factor"}) {
    if (keys.contains(number)) {
      keys[number] = keys[number].get<double>();
    }
  }
  if (is_switched(family.window) && model.attention_window == 0) {
    keys["use_sliding_window"] = false;
  }
  if (is_by_layer(family.window) && model.attention_window == 0) {
    keys["layer_types"] =
        std::vector<std::string>(static_cast<std::size_t>(model.num_layers), "full_attention");
  }
  // The families' defaults are tokens of other vocabularies.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    keys[token] = nullptr;
  }
  keys["use_cache"] = true;
  return keys;
}

/// The original config.json, if it describes this model.
std::optional<Json> kept(const ModelSpec& model, const std::optional<std::string>& original) {
  if (!original) {
    return std::nullopt;
  }
  try {
    Json keys = Json::parse(*original);
    const std::string run = Json{{"model", keys}}.dump();
    ModelSpec described = parse_model_spec(run, "config.json");
    described.scores = model.scores;  // a reward model may have been made of one that was not
    if (described == model) {
      return keys;
    }
  } catch (const ConfigError&) {  // of another kind of model altogether
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

}  // namespace

std::string huggingface_config(const ModelSpec& model,
                               DType dtype,
                               const std::optional<std::string>& original) {
  Json keys = kept(model, original).value_or(written_anew(model));
  keys.erase("quantization_config");  // of weights that were read in 4 bits
  keys["architectures"] = {class_of(model)};
  keys.erase("score_head");
  for (const char* labels : {"id2label", "label2id", "num_labels"}) {
    keys.erase(labels);
  }
  if (model.scores) {  // by the number of labels the class knows that there is one score
    keys["id2label"] = {{"0", "LABEL_0"}};
    keys["label2id"] = {{"LABEL_0", 0}};
  }
  // transformers says "dtype" since version 5, "torch_dtype" before: both, unless the original has
  // one of them.
  const bool has_either = keys.contains("dtype") || keys.contains("torch_dtype");
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (!has_either || keys.contains(name)) {
      keys[name] = torch_name(dtype);
    }
  }
  return keys.dump(2) + "\n";
}

}  // namespace dstrain
