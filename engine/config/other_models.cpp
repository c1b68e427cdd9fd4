#include "engine/config/other_models.h"

#include <map>
#include <string>

#include <fmt/format.h>

#include "engine/config/config_keys.h"
#include "engine/config/did_you_mean.h"
#include "engine/config/model_families.h"

namespace dstrain {
namespace {

/// What the best known of them have that the supported families lack.
const std::map<std::string, std::string>& differences() {
  static const std::map<std::string, std::string> all = [] {
    std::map<std::string, std::string> names = {
        {"gpt_neo", "attends locally in every other block"},
        {"mamba", "has no attention"},
        {"mamba2", "has no attention"},
    };
    const auto add = [&](const std::string& what, std::initializer_list<const char*> of) {
      for (const char* name : of)
        names[name] = what;
    };
    add("a mixture of experts", {"qwen2_moe", "dbrx", "granitemoe", "phimoe"});
    add("scales its embeddings and gates its MLP with GELU", {"gemma"});
    add("reads images too; its text model is \"gemma3_text\", whose keys are in its text_config",
        {"gemma3"});
    add("computes attention and MLP side by side", {"gptj", "falcon", "phi", "cohere"});
    add("has LayerNorms without biases", {"mpt"});
    add("is not a decoder alone", {"bert", "roberta", "t5", "mt5", "bart"});
    return names;
  }();
  return all;
}

std::string quoted_families() {
  const std::vector<std::string> families = model_families();
  std::string list;
  for (std::size_t i = 0; i < families.size(); ++i) {
    list += (i == 0 ? "" : i + 1 == families.size() ? " and " : ", ") + json_quote(families[i]);
  }
  return list;
}

}  // namespace

void refuse_other_models(const JsonNode& root) {
  const JsonNode* type = find_path(root, "model.model_type");
  if (type == nullptr || !type->is(JsonNode::Kind::kString)) return;
  const std::string& name = type->text;
  std::string what = json_quote(name);
  std::string hint;
  std::vector<ConfigEdit> mend;
  if (const auto known = differences().find(name); known != differences().end()) {
    what += fmt::format(" ({})", known->second);
  } else if (const auto near = nearest_name(name, model_families(), typing_error_limit(name))) {
    if (*near == name) return;
    hint = fmt::format("; did you mean {}?", json_quote(*near));
    mend = {{ConfigEdit::Kind::kSet, "model.model_type", json_quote(*near)}};
  }
  throw_config_error(
      type->where, "model.model_type",
      fmt::format("{} is not in this version, which trains {}{}", what, quoted_families(), hint),
      mend);
}

}  // namespace dstrain
