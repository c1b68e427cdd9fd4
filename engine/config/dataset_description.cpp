#include "engine/config/dataset_description.h"

#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kSentencePiece = "sentencepiece:";
constexpr const char* kModelName = "tokenizer.model";

std::string content_of(const fs::path& path) {
  return read_regular_file(path.string()).text;
}

/// Returns "train" for "data/train", "data/train.bin" and "data/train.idx".
std::string stem_of(const fs::path& prefix) {
  const fs::path name = prefix.filename();
  return name.extension() == ".bin" || name.extension() == ".idx" ? name.stem().string()
                                                                  : name.string();
}

/// The tokenizer's identity as far as the description of an older dstrain gives it.
TokenizerIdentity identity_from_files(const DatasetDescription& description, const Json& json) {
  TokenizerIdentity identity{.kind = description.tokenizer, .hash = "", .vocab_size = 0};
  if (const Json size = json.value("vocab_size", Json()); size.is_number_integer()) {
    identity.vocab_size = size.get<std::int64_t>();
  }
  if (const Json end = json.value("append_eod", Json()); end.is_number_integer()) {
    identity.document_end = end.get<std::int32_t>();
  }
  if (description.tokenizer.starts_with(kSentencePiece)) {
    identity.kind = "sentencepiece";
    identity.file = kModelName;
    if (const auto file = description.tokenizer_file()) {
      identity.hash = content_hash(content_of(*file));
    }
  }
  return identity;
}

}  // namespace

std::optional<fs::path> DatasetDescription::tokenizer_file() const {
  const std::size_t colon = tokenizer.find(':');
  if (colon == std::string::npos) {
    return std::nullopt;
  }
  const std::string name = identity.file.empty() ? kModelName : identity.file;
  for (const fs::path& path : {file.parent_path() / name, fs::path(tokenizer.substr(colon + 1))}) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) {
      return path;
    }
  }
  return std::nullopt;
}

bool names_json_lines(const std::string& source) {
  fs::path name = fs::path(source).filename();
  const std::string last = name.extension().string();
  if (last == ".gz" || last == ".zst" || last == ".xz") {
    name = name.stem();
  }
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

std::optional<DatasetDescription> read_dataset_description(const fs::path& folder) {
  DatasetDescription description{.file = folder / "dataset.json"};
  const Json json = Json::parse(content_of(description.file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("tokenizer", Json()).is_string()) {
    return std::nullopt;
  }
  description.tokenizer = json["tokenizer"].get<std::string>();
  const auto identity = parse_tokenizer_identity(json.value("tokenizer_identity", Json()));
  description.identity = identity ? *identity : identity_from_files(description, json);
  if (const Json samples = json.value("samples", Json()); samples.is_object()) {
    description.samples = samples.value("kind", "");
  }
  for (const char* split : {"train", "validation"}) {
    const Json about = json.value(split, Json());
    if (about.is_object() && about.value("content", Json()).is_string()) {
      description.content[split] = about["content"].get<std::string>();
    }
  }
  return description;
}

std::optional<DatasetDescription> description_of_prefix(const std::string& prefix) {
  const std::string stem = stem_of(prefix);
  if (stem != "train" && stem != "validation") {
    return std::nullopt;
  }
  return read_dataset_description(fs::path(prefix).parent_path());
}

}  // namespace dstrain
