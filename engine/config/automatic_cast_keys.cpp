// "amp" (Apex) and "torch_autocast": two other ways to ask for 16 bits. Both keep fp32 weights and
// multiply in 16 bits, as bf16 and fp16 do here, so they are read as those.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

/// Treats the key as another name of bf16.enabled or fp16.enabled. A notice says what it `means`.
void choose(ConfigDraft& draft,
            const JsonNode& node,
            const std::string& path,
            Precision precision,
            const std::string& means) {
  Config& config = draft.config;
  if (config.precision != Precision::kF32 && config.precision != precision) {
    throw_config_error(node.where, path,
                       fmt::format("true, and {}.enabled as well: a model computes in one of them; "
                                   "set one to false",
                                   config.precision == Precision::kF16 ? "fp16" : "bf16"));
  }
  config.precision = precision;
  config.open_precision = {};
  draft.derived["bf16.enabled"] = path;
  draft.derived["fp16.enabled"] = path;
  draft.notices.push_back(fmt::format("{}: {}", path, means));
}

/// The level is "O1" unless amp.opt_level, which stands before this key in the table, says
/// otherwise.
Key amp_enabled() {
  const std::string path = "amp.enabled";
  Key key = silent(path, KeyKind::kBool);
  key.set = [path](ConfigDraft& draft, const JsonNode& node) {
    if (!node.boolean) return;
    if (draft.amp_level == "O0") {
      choose(draft, node, path, Precision::kF32, "Apex's O0 computes in fp32, as it does here");
      return;
    }
    choose(
        draft, node, path, Precision::kF16,
        fmt::format("Apex's {} computes in fp16 with a {} loss scale, as it does here, with fp32 "
                    "master weights (fp16.enabled)",
                    draft.amp_level, draft.amp_static_scale ? "static" : "dynamic"));
    draft.config.loss_scale.static_scale = draft.amp_static_scale.value_or(0.0);
  };
  return key;
}

Key amp_level() {
  Key key = silent("amp.opt_level", KeyKind::kString);
  key.choices = {"O0", "O1", "O2", "O3"};
  key.shape = R"({"enum": ["O0", "O1", "O2"]})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (node.text == "O3") {
      throw_config_error(node.where, "amp.opt_level",
                         "\"O3\" is refused: updates would be lost to rounding in fp16 weights; "
                         "write \"O2\", which keeps fp32 ones beside them");
    }
    draft.amp_level = node.text;
  };
  return key;
}

Key amp_loss_scale() {
  Key key = silent("amp.loss_scale");
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (node.is(JsonNode::Kind::kNumber) && node.number > 0) draft.amp_static_scale = node.number;
  };
  return key;
}

/// Without torch_autocast.dtype it means bf16, which needs no loss scale.
Key autocast_enabled() {
  const std::string path = "torch_autocast.enabled";
  Key key = silent(path, KeyKind::kBool);
  key.set = [path](ConfigDraft& draft, const JsonNode& node) {
    if (!node.boolean || draft.config.precision != Precision::kF32) return;
    const bool f16 = draft.autocasts_to_f16;
    choose(draft, node, path, f16 ? Precision::kF16 : Precision::kBF16,
           fmt::format("autocast to {0} computes in it with fp32 weights, as it does here "
                       "({0}.enabled)",
                       f16 ? "fp16" : "bf16"));
  };
  return key;
}

Key autocast_dtype() {
  Key key = silent("torch_autocast.dtype", KeyKind::kString);
  key.choices = {"bf16", "fp16"};
  key.synonyms = {{"bfloat16", "bf16"},
                  {"float16", "fp16"},
                  {"half", "fp16"},
                  {"torch.bfloat16", "bf16"},
                  {"torch.float16", "fp16"}};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.autocasts_to_f16 = node.text == "fp16";
  };
  return key;
}

}  // namespace

std::vector<Key> automatic_cast_keys() {
  std::vector<Key> keys = {amp_level(), amp_loss_scale(), amp_enabled(), autocast_dtype(),
                           autocast_enabled()};
  for (const char* name :
       {"keep_batchnorm_fp32", "cast_model_type", "patch_torch_functions", "master_weights",
        "num_losses", "verbosity", "min_loss_scale", "max_loss_scale", "cast_model_outputs"}) {
    keys.push_back(silent(fmt::format("amp.{}", name)));
  }
  keys.push_back(silent("torch_autocast.lower_precision_safe_modules"));
  return keys;
}

}  // namespace dstrain
