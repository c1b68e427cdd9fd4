#include "engine/checkpoint/run_facts.h"

#include <string>

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::json;

/// The value at `keys`, or null.
Json value_at(const Json& root, std::initializer_list<const char*> keys) {
  const Json* node = &root;
  for (const char* key : keys) {
    if (!node->is_object() || !node->contains(key)) {
      return nullptr;
    }
    node = &(*node)[key];
  }
  return *node;
}

void add_folder(const Json& source, std::vector<std::filesystem::path>& folders) {
  const Json path = source.is_object() ? value_at(source, {"path"}) : source;
  if (path.is_string()) {
    folders.push_back(std::filesystem::path(path.get<std::string>()).parent_path());
  }
}

}  // namespace

RunFacts read_run_facts(std::string_view run_config,
                        const std::optional<TokenizerIdentity>& tokenizer) {
  const Json run = Json::parse(run_config, nullptr, /*allow_exceptions=*/false);
  RunFacts facts;
  facts.tokenizer = tokenizer;
  const Json bf16 = value_at(run, {"bf16", "enabled"});
  const Json f16 = value_at(run, {"fp16", "enabled"});
  if (bf16.is_boolean() || f16.is_boolean()) {
    facts.compute = bf16 == true ? DType::kBF16 : f16 == true ? DType::kF16 : DType::kF32;
  }
  const Json train = value_at(run, {"data", "train"});
  if (train.is_array()) {
    for (const Json& source : train) {
      add_folder(source, facts.data_folders);
    }
  } else {
    add_folder(train, facts.data_folders);
  }
  const Json initial = value_at(run, {"model", "initial_weights"});
  if (initial.is_string()) {
    facts.initial_weights = initial.get<std::string>();
  }
  return facts;
}

}  // namespace dstrain
