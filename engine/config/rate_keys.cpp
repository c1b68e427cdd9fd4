// "optimizer.params.lr_scale" and ".lr_layer_decay": the part of the learning rate that each tensor
// is trained with.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/key_builders.h"
#include "engine/config/lax_values.h"

namespace dstrain {
namespace {

constexpr const char* kScale = "optimizer.params.lr_scale";
constexpr double kMostOfRate = 1e6;

/// Factors of the learning rate by patterns of tensors' names.
Key lr_scale() {
  Key key{.path = kScale, .kind = KeyKind::kAny, .null_is_absent = true};
  key.shape = fmt::format(
      R"({{"type": "object", "additionalProperties": {{"type": "number", "exclusiveMinimum": 0,
           "maximum": {:.0f}}}}})",
      kMostOfRate);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (!node.is(JsonNode::Kind::kObject)) {
      throw_config_error(node.where, kScale,
                         "must be an object of patterns of tensors' names and what the rate is "
                         "multiplied by, such as {\"embedding.*\": 0.1, \"*.lora_b\": 16}; found " +
                             node.describe());
    }
    for (const JsonMember& member : node.members) {
      const auto scale = number_meant(member.value);
      if (!scale || !(*scale > 0.0 && *scale <= kMostOfRate)) {
        throw_config_error(
            member.value.where, kScale,
            fmt::format("{} must have a number above 0, which the rate is multiplied by (what "
                        "training.freeze covers is not trained); found {}",
                        json_quote(member.key), member.value.dump()));
      }
      draft.config.rates.scales.push_back({member.key, *scale});
    }
  };
  key.get = [](const Config& c) -> std::string {
    std::string members;
    for (const RateScale& scale : c.rates.scales) {
      members += fmt::format("{}{}: {}", members.empty() ? "" : ", ", json_quote(scale.pattern),
                             scale.scale);
    }
    return members.empty() ? members : "{" + members + "}";
  };
  return key;
}

Key lr_layer_decay() {
  Key key = field(
      "optimizer.params.lr_layer_decay", {.low = 0, .high = 1, .low_open = true},
      [](auto& c) -> auto& { return c.rates.layer_decay; });
  key.get = [get = key.get](const Config& c) {
    return c.rates.layer_decay == 1.0 ? std::string() : get(c);
  };
  return key;
}

}  // namespace

std::vector<Key> rate_keys() {
  return {lr_scale(), lr_layer_decay()};
}

}  // namespace dstrain
