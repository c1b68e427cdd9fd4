#include "engine/tokenizer/tokenizer_source.h"

#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"
#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/older_vocabularies.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJsonName = "tokenizer.json";
constexpr const char* kModelName = "tokenizer.model";
constexpr const char* kConfigName = "tokenizer_config.json";
/// Many times the size of the largest known file.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

enum class Wanted : std::uint8_t { kAny, kSentencePiece, kHuggingFace, kRanks };

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string content_of(const fs::path& path) {
  FileText file = read_regular_file(path.string(), kMostBytes);
  if (!file.why.empty()) {
    throw ConfigError(
        fmt::format("{}: cannot be read as a tokenizer: {}", path.string(), file.why));
  }
  return std::move(file.text);
}

/// The content of a file that may be missing.
std::string content_if_any(const fs::path& path) {
  return is_file(path) ? content_of(path) : std::string();
}

TokenizerSource huggingface(const fs::path& path, std::string json) {
  TokenizerSource source{.name = "huggingface:" + path.string(), .kind = "huggingface"};
  source.files.emplace_back(kJsonName, std::move(json));
  const fs::path folder = is_folder(path) ? path : path.parent_path();
  if (std::string config = content_if_any(folder / kConfigName); !config.empty()) {
    source.files.emplace_back(kConfigName, std::move(config));
  }
  return source;
}

TokenizerSource sentencepiece(const fs::path& path, std::string model) {
  return {.name = "sentencepiece:" + path.string(),
          .kind = "sentencepiece",
          .files = {{kModelName, std::move(model)}}};
}

TokenizerSource of_ranks(const fs::path& path, const std::string& ranks) {
  TokenizerSource source{.name = "tiktoken:" + path.string(), .kind = "huggingface"};
  source.files.emplace_back(kJsonName, tokenizer_json_of_ranks(ranks, path.string()));
  return source;
}

TokenizerSource of_vocabulary_files(const fs::path& folder) {
  const VocabularyFiles files{.vocab_json = content_of(folder / "vocab.json"),
                              .merges_txt = content_of(folder / "merges.txt"),
                              .tokenizer_config = content_if_any(folder / kConfigName),
                              .added_tokens = content_if_any(folder / "added_tokens.json")};
  return huggingface(folder, tokenizer_json_of(files, folder.string()));
}

bool has_vocabulary_files(const fs::path& folder) {
  return is_file(folder / "vocab.json") && is_file(folder / "merges.txt");
}

TokenizerSource in_file(const fs::path& path, Wanted wanted) {
  if (path.filename() == "vocab.json" || path.filename() == "merges.txt") {
    return of_vocabulary_files(path.parent_path());
  }
  std::string content = content_of(path);
  if (wanted == Wanted::kAny) {
    const std::size_t first = content.find_first_not_of(" \t\r\n");
    wanted = first != std::string::npos && content[first] == '{' ? Wanted::kHuggingFace
             : looks_like_ranks(content)                         ? Wanted::kRanks
                                                                 : Wanted::kSentencePiece;
  }
  switch (wanted) {
    case Wanted::kHuggingFace:
      return huggingface(path, std::move(content));
    case Wanted::kRanks:
      return of_ranks(path, content);
    default:
      return sentencepiece(path, std::move(content));
  }
}

TokenizerSource in_folder(const fs::path& folder, Wanted wanted) {
  if (wanted != Wanted::kSentencePiece && is_file(folder / kJsonName)) {
    return in_file(folder / kJsonName, wanted);
  }
  if (is_file(folder / kModelName)) {
    return in_file(folder / kModelName, wanted);
  }
  if (wanted != Wanted::kSentencePiece && has_vocabulary_files(folder)) {
    return of_vocabulary_files(folder);
  }
  throw ConfigError(
      fmt::format("{}: holds no tokenizer; expected tokenizer.json, tokenizer.model, or vocab.json "
                  "and merges.txt",
                  folder.string()));
}

/// The text of a token given as "</s>" or {"content": "</s>", …}; empty where there is none.
std::string token_text(const nlohmann::json& config, const char* key) {
  const nlohmann::json value = config.is_object() ? config.value(key, nlohmann::json()) : config;
  const nlohmann::json text = value.is_object() ? value.value("content", nlohmann::json()) : value;
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace

TokenizerSource TokenizerSource::find(const std::string& name) {
  if (name == "bytes") {
    return {.name = name, .kind = "bytes"};
  }
  constexpr std::pair<std::string_view, Wanted> kPrefixes[] = {
      {"sentencepiece:", Wanted::kSentencePiece},
      {"huggingface:", Wanted::kHuggingFace},
      {"tiktoken:", Wanted::kRanks}};
  for (const auto& [prefix, wanted] : kPrefixes) {
    if (name.starts_with(prefix)) {
      const fs::path path = name.substr(prefix.size());
      return is_folder(path) ? in_folder(path, wanted) : in_file(path, wanted);
    }
  }
  std::error_code error;
  if (!fs::exists(name, error)) {
    throw ConfigError(
        fmt::format("tokenizer \"{}\": expected bytes, or an existing file or model folder: "
                    "tokenizer.json, "
                    "a SentencePiece model, a rank file of tiktoken",
                    name));
  }
  return is_folder(name) ? in_folder(name, Wanted::kAny) : in_file(name, Wanted::kAny);
}

bool TokenizerSource::is_in(const fs::path& folder) {
  return is_file(folder / kJsonName) || is_file(folder / kModelName) ||
         has_vocabulary_files(folder);
}

std::filesystem::path TokenizerSource::folder() const {
  const std::size_t colon = name.find(':');
  if (colon == std::string::npos) {
    return {};
  }
  const std::filesystem::path path = name.substr(colon + 1);
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? path
         : path.has_parent_path()                     ? path.parent_path()
                                                      : std::filesystem::path(".");
}

TokenizerIdentity TokenizerSource::identity() const {
  if (files.empty()) {
    return {.kind = kind, .hash = ""};
  }
  return {.kind = kind, .hash = content_hash(files.front().second), .file = files.front().first};
}

std::unique_ptr<Tokenizer> TokenizerSource::make() const {
  if (files.empty()) {
    return make_byte_tokenizer();
  }
  const std::string path = name.substr(name.find(':') + 1);
  if (kind == "sentencepiece") {
    return make_sentencepiece_tokenizer(files.front().second, path);
  }
  TextLimitTokens limits;
  for (const auto& [file, content] : files) {
    if (file == kConfigName) {
      const auto config = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
      limits = {.beginning = token_text(config, "bos_token"),
                .end = token_text(config, "eos_token")};
    }
  }
  return make_huggingface_tokenizer(files.front().second, path, limits);
}

std::unique_ptr<Tokenizer> Tokenizer::make(const std::string& name) {
  return TokenizerSource::find(name).make();
}

}  // namespace dstrain
