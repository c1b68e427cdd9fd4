#include "engine/config/arch/family.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

const std::vector<Family>& families() {
#define DSTRAIN_FAMILY(name) name##_family(),
  static const std::vector<Family> all = {
#include "engine/config/arch/families.inc"
  };
#undef DSTRAIN_FAMILY
  return all;
}

const Family& family_of(const std::string& model_type) {
  const auto found = std::find_if(families().begin(), families().end(), [&](const Family& family) {
    return family.model_type() == model_type;
  });
  check(found != families().end(), "there is no family \"{}\"", model_type);
  return *found;
}

std::string key_path(const ModelSpec& model, const std::string& of_llama) {
  const Family& family = family_of(model);
  const bool of_alibi = model.position == PositionKind::kAlibi &&
                        !family.alibi_length_key.empty() && of_llama == "max_position_embeddings";
  return "model." + (of_alibi ? family.alibi_length_key : family.key(of_llama));
}

std::vector<WidthKey> feed_forward_keys(const ModelSpec& model) {
  if (family_of(model).key("intermediate_size").empty()) {
    return {{.path = key_path(model, "hidden_size"),
             .value = model.hidden_size,
             .times = kFeedForwardTimes}};
  }
  std::vector<WidthKey> keys;
  const auto add = [&](const char* name, std::int64_t value) {
    keys.push_back({.path = key_path(model, name), .value = value, .times = 1});
  };
  if (model.uses_intermediate_size()) add("intermediate_size", model.intermediate_size);
  if (model.expert_width > 0) add("moe_intermediate_size", model.expert_width);
  return keys;
}

}  // namespace dstrain
