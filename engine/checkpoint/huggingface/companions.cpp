#include "engine/checkpoint/huggingface/companions.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/huggingface/tokenizer_files.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kNames[] = {"config.json",
                                  "generation_config.json",
                                  "tokenizer.json",
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
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  return in.bad() ? std::nullopt : std::optional(std::move(content));
}

/// The string at a path of keys, or "".
std::string text_at(const Json& document, std::string_view block, std::string_view key) {
  const auto found = document.is_object() ? document.find(block) : document.end();
  if (found == document.end() || !found->is_object()) {
    return "";
  }
  const auto value = found->find(key);
  return value != found->end() && value->is_string() ? value->get<std::string>() : "";
}

/// Folders of the data that a run was trained on.
std::vector<fs::path> data_folders(const Json& run) {
  std::vector<fs::path> folders;
  const auto add = [&](const Json& source) {
    const Json& path = source.is_object() && source.contains("path") ? source["path"] : source;
    if (path.is_string()) {
      folders.push_back(fs::path(path.get<std::string>()).parent_path());
    }
  };
  if (run.is_object() && run.contains("data") && run["data"].contains("train")) {
    const Json& train = run["data"]["train"];
    if (train.is_array()) {
      for (const Json& source : train) {
        add(source);
      }
    } else {
      add(train);
    }
  }
  return folders;
}

bool has_tokenizer(const Companions& companions) {
  return std::any_of(companions.files().begin(), companions.files().end(), [](const auto& file) {
    return file.first == "tokenizer.json" || file.first == "tokenizer.model" ||
           file.first == "vocab.json";
  });
}

/// The tokenizer named by what prepare-data left beside the tokens.
void add_tokenizer_of(const fs::path& folder, Companions& companions) {
  constexpr std::string_view kSentencePiece = "sentencepiece:";
  const Json dataset =
      Json::parse(content_of(folder / "dataset.json").value_or(""), nullptr, false);
  const bool has_tokenizer =
      dataset.is_object() && dataset.contains("tokenizer") && dataset["tokenizer"].is_string();
  const std::string tokenizer = has_tokenizer ? dataset["tokenizer"].get<std::string>() : "";
  if (tokenizer == "bytes") {
    companions.add("tokenizer.json", byte_tokenizer());
    companions.add("tokenizer_config.json", byte_tokenizer_config());
  } else if (tokenizer.starts_with(kSentencePiece)) {
    auto model = content_of(folder / "tokenizer.model");
    if (!model) {  // of somebody else's making, and elsewhere
      model = content_of(tokenizer.substr(kSentencePiece.size()));
    }
    if (model) {
      companions.add("tokenizer_config.json", sentencepiece_config(*model));
      companions.add("tokenizer.model", std::move(*model));
    }
  }
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

Companions companions_of_folder(const fs::path& folder) {
  Companions companions;
  for (const char* name : kNames) {
    if (auto content = content_of(folder / name)) {
      companions.add(name, std::move(*content));
    }
  }
  return companions;
}

Companions find_companions(const fs::path& source, const std::string& run_config) {
  Companions companions;
  std::error_code error;
  if (fs::is_directory(source, error)) {
    companions = companions_of_folder(source);
  }
  const Json run = Json::parse(run_config, nullptr, /*allow_exceptions=*/false);
  const std::string start = text_at(run, "model", "initial_weights");
  if (companions.files().empty() && !start.empty()) {
    companions = companions_of_folder(start);
  }
  for (const fs::path& folder : data_folders(run)) {
    if (!has_tokenizer(companions)) {
      add_tokenizer_of(folder, companions);
    }
  }
  return companions;
}

}  // namespace dstrain
