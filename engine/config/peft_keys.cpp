// "peft": low-rank adapters, with the names of an adapter_config.json, which may be pasted there.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kPeft{"peft.", &Config::adapters};
constexpr double kMostRank = 65536;

/// Names of modules, in a list or one alone. `expected`: what they are, with examples.
Key modules(const char* path,
            std::vector<std::string> AdapterConfig::*member,
            const char* expected) {
  Key key{.path = path, .kind = KeyKind::kAny, .null_is_absent = true};
  key.shape = R"({"anyOf": [{"type": "string", "minLength": 1},
                  {"type": "array", "items": {"type": "string", "minLength": 1}}]})";
  key.set = [=](ConfigDraft& draft, const JsonNode& node) {
    const auto add = [&](const JsonNode& name) {
      if (!name.is(JsonNode::Kind::kString) || name.text.empty()) {
        throw_config_error(name.where, path,
                           fmt::format("must be names of {}; found {}", expected, name.describe()));
      }
      (draft.config.adapters.*member).push_back(name.text);
    };
    if (!node.is(JsonNode::Kind::kArray)) return add(node);
    for (const JsonNode& item : node.items) {
      add(item);
    }
  };
  key.get = [member](const Config& c) -> std::string {
    std::string list;
    for (const std::string& name : c.adapters.*member) {
      list += (list.empty() ? "" : ", ") + json_quote(name);
    }
    return list.empty() ? list : "[" + list + "]";
  };
  return key;
}

/// A number or a switch of adapters, shown where there are some.
template <typename Member>
Key of_adapters(const char* name, NumberRange range, Member AdapterConfig::*member) {
  Key key = null_is_default(kPeft.field(name, range, member));
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.adapters.enabled() ? get(config) : std::string();
  };
  return key;
}

}  // namespace

std::vector<Key> peft_keys() {
  std::vector<Key> keys = {
      modules("peft.target_modules", &AdapterConfig::target_modules,
              "the model's linear layers, such as [\"q_proj\", \"v_proj\"], or \"all-linear\""),
      modules("peft.modules_to_save", &AdapterConfig::modules_to_save,
              "the model's modules, such as [\"embed_tokens\", \"lm_head\"]"),
      of_adapters("r", between(1, kMostRank), &AdapterConfig::rank),
      of_adapters("lora_alpha", above(0), &AdapterConfig::alpha),
      of_adapters("use_rslora", {}, &AdapterConfig::rank_stabilised),
      of_adapters("use_dora", {}, &AdapterConfig::magnitudes),
      of_adapters("lora_dropout", fraction_below_one(), &AdapterConfig::dropout),
      refused("peft.peft_type", {"\"LORA\""}, "adapters are LoRA's: write \"LORA\""),
      refused("peft.bias", {"\"none\""}, "adapters alone are trained: write \"none\""),
      refused("peft.lora_bias", {"false"}, "adapters have no biases: write false"),
      refused("peft.trainable_token_indices", {"[]"}, "adapters alone are trained: write []"),
      refused("peft.init_lora_weights", {"true"},
              "A starts uniform within 1/sqrt(inputs), and B as 0: write true"),
  };
  for (const char* const name : {"rank_pattern", "alpha_pattern"}) {
    keys.push_back(refused(std::string("peft.") + name, {"{}"},
                           "all adapters have the same r and lora_alpha: write {}"));
  }
  for (const char* const name : {"layers_to_transform", "layers_pattern", "exclude_modules",
                                 "layer_replication", "target_parameters"}) {
    keys.push_back(refused(std::string("peft.") + name, {"[]", "\"\""},
                           "every block has the adapters of peft.target_modules: leave it out"));
  }
  for (const char* const name :
       {"task_type", "inference_mode", "base_model_name_or_path", "revision", "auto_mapping",
        "fan_in_fan_out", "peft_version", "megatron_config", "megatron_core", "loftq_config",
        "eva_config", "corda_config", "runtime_config"}) {
    keys.push_back(silent(std::string("peft.") + name));
  }
  return keys;
}

}  // namespace dstrain
