#include "engine/checkpoint/foreign/huggingface/companions.h"

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"
#include "engine/checkpoint/run_facts.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModelNames[] = {"config.json", "generation_config.json"};
constexpr const char* kTokenizerNames[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "chat_template.jinja"};

std::optional<std::string> content_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return std::nullopt;
  }
  FileText file = read_regular_file(path.string());
  return file.why.empty() ? std::optional(std::move(file.text)) : std::nullopt;
}

/// "bytes" as convert-checkpoint writes it.
bool is_byte_tokenizer(const std::string& tokenizer_json) {
  const std::string ours = byte_tokenizer();
  return tokenizer_json == ours ||
         // Another program may have saved it again; but one that is far too large is not parsed.
         (tokenizer_json.size() < 4 * ours.size() &&
          Json::parse(tokenizer_json, nullptr, false) == Json::parse(ours));
}

void add_tokenizer_of(const DatasetDescription& data, Companions& companions) {
  if (data.identity.kind == "bytes") {
    companions.add("tokenizer.json", byte_tokenizer());
    companions.add("tokenizer_config.json", plain_tokenizer_config());
  } else if (const auto file = data.tokenizer_file()) {
    auto content = content_of(*file);
    if (!content) {
      return;
    }
    if (data.identity.kind == "huggingface") {
      auto config = content_of(file->parent_path() / "tokenizer_config.json");
      companions.add("tokenizer_config.json", config ? *config : plain_tokenizer_config());
      companions.add("tokenizer.json", std::move(*content));
    } else {
      companions.add("tokenizer_config.json", sentencepiece_config(*content));
      companions.add("tokenizer.model", std::move(*content));
    }
  }
}

/// Whether those files may be those of the data's tokenizer.
bool fits(const Companions& companions, const TokenizerIdentity& data) {
  const std::vector<TokenizerIdentity> found = companions.tokenizers();
  const auto is = [&](std::optional<bool> answer) {
    return std::any_of(found.begin(), found.end(), [&](const TokenizerIdentity& one) {
      return is_same_tokenizer(one, data) == answer;
    });
  };
  return is(true) || (is(std::nullopt) && !is(false));
}

}  // namespace

std::optional<std::string> Companions::take(const std::string& name) {
  const auto found = files_.find(name);
  if (found == files_.end()) {
    return std::nullopt;
  }
  std::optional<std::string> content = std::move(found->second);
  files_.erase(found);
  return content;
}

void Companions::remove_tokenizer() {
  for (const char* name : kTokenizerNames) {
    files_.erase(name);
  }
}

std::vector<TokenizerIdentity> Companions::tokenizers() const {
  std::vector<TokenizerIdentity> found;
  if (const auto model = files_.find("tokenizer.model"); model != files_.end()) {
    found.push_back(
        {.kind = "sentencepiece", .hash = content_hash(model->second), .file = model->first});
  }
  if (const auto json = files_.find("tokenizer.json"); json != files_.end()) {
    if (is_byte_tokenizer(json->second)) {
      found.push_back({.kind = "bytes", .hash = ""});
    } else {
      found.push_back(
          {.kind = "huggingface", .hash = content_hash(json->second), .file = json->first});
    }
  }
  return found;
}

Companions companions_of_folder(const fs::path& folder) {
  Companions companions;
  const auto add_all = [&](std::span<const char* const> names) {
    for (const char* name : names) {
      if (auto content = content_of(folder / name)) {
        companions.add(name, std::move(*content));
      }
    }
  };
  add_all(kModelNames);
  add_all(kTokenizerNames);
  return companions;
}

Companions companions_of_run(const std::vector<fs::path>& weights,
                             const std::optional<DatasetDescription>& data) {
  Companions companions;
  for (const fs::path& folder : weights) {
    if (companions.files().empty()) {
      companions = companions_of_folder(folder);
    }
  }
  if (data && data->knows_tokenizer() && !fits(companions, data->identity)) {
    companions.remove_tokenizer();
    add_tokenizer_of(*data, companions);
  }
  return companions;
}

Companions find_companions(const fs::path& source, const std::string& run_config) {
  const RunFacts run = read_run_facts(run_config);
  std::vector<fs::path> weights{source};
  if (!run.initial_weights.empty()) {
    weights.push_back(run.initial_weights);
  }
  std::optional<DatasetDescription> data;
  for (const fs::path& folder : run.data_folders) {
    if (!data) {
      data = read_dataset_description(folder);
    }
  }
  return companions_of_run(weights, data);
}

}  // namespace dstrain
