#include "engine/checkpoint/foreign/huggingface/model_config.h"

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/arch/family.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

std::string_view torch_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

/// The rotary frequencies once more, as transformers 5 spells them.
Json rope_parameters(const Json& keys) {
  Json rope = keys.value("rope_scaling", Json::object());
  if (!rope.contains("rope_type")) {
    rope["rope_type"] = "default";
  }
  rope["rope_theta"] = keys.at("rope_theta");
  return rope;
}

Json written_anew(const ModelSpec& model) {
  Json keys{{"architectures", {family_of(model).huggingface_class}}};
  keys.update(Json::parse(model_json(model)));
  if (model.position == PositionKind::kRope) {
    keys["rope_parameters"] = rope_parameters(keys);
    keys["attention_dropout"] = 0.0;
  } else {
    for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
      keys[dropout] = 0.0;
    }
  }
  if (family_of(model).window == WindowKeys::kSwitched && model.attention_window == 0) {
    keys["use_sliding_window"] = false;
  }
  // The families' defaults are tokens of other vocabularies.
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    keys[token] = nullptr;
  }
  keys["use_cache"] = true;
  return keys;
}

/// The original, if it is of this model.
std::optional<Json> kept(const ModelSpec& model, const std::optional<std::string>& original) {
  if (!original) {
    return std::nullopt;
  }
  try {
    Json keys = Json::parse(*original);
    const std::string run = Json{{"model", keys}}.dump();
    if (parse_model_spec(run, "config.json") == model) {
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
  keys["architectures"] = {family_of(model).huggingface_class};
  keys["dtype"] = torch_name(dtype);
  keys["torch_dtype"] = torch_name(dtype);
  return keys.dump(2) + "\n";
}

}  // namespace dstrain
