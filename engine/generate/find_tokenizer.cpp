#include "engine/generate/find_tokenizer.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"
#include "engine/config/config_error.h"
#include "engine/config/dataset_description.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// The object in a file, or an empty one.
Json object_in(const fs::path& path) {
  const Json json =
      Json::parse(read_regular_file(path.string()).text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

void add_ids(const Json& json, const char* key, std::vector<std::int32_t>& ids) {
  const Json value = json.value(key, Json());
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (id.is_number_integer()) {
      ids.push_back(id.get<std::int32_t>());
    }
  }
}

FoundTokenizer make(const TokenizerSource& source) {
  FoundTokenizer found{.name = source.name, .tokenizer = source.make(), .ends = {}};
  found.beginning = found.tokenizer->beginning_of_text();
  if (const auto end = found.tokenizer->end_of_text()) {
    found.ends.push_back(*end);
  }
  return found;
}

/// As in Hugging Face's own generation, its config names the ids that end a text.
void take_huggingface_ids(const fs::path& folder, FoundTokenizer& found) {
  const Json config = object_in(folder / "config.json");
  const Json generation = object_in(folder / "generation_config.json");
  add_ids(generation.contains("eos_token_id") ? generation : config, "eos_token_id", found.ends);
}

/// Whether the folder has the tokenizer.json that convert-checkpoint writes for a model of bytes.
bool is_of_bytes(const fs::path& folder) {
  const std::string ours = byte_tokenizer();
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(folder / "tokenizer.json", error);
  return !error && bytes < 4 * ours.size() &&
         object_in(folder / "tokenizer.json") == Json::parse(ours);
}

FoundTokenizer beside_weights(const fs::path& folder) {
  if (is_of_bytes(folder)) {
    FoundTokenizer bytes = make(TokenizerSource::find("bytes"));
    take_huggingface_ids(folder, bytes);
    return bytes;
  }
  const TokenizerSource source = TokenizerSource::find(folder.string());
  FoundTokenizer found = make(source);
  take_huggingface_ids(folder, found);
  // A tokenizer.json specifies what it puts in front; a SentencePiece model does not, and
  // transformers adds its beginning-of-text token unless the settings say otherwise.
  const bool begins = source.kind == "sentencepiece" || found.tokenizer->always_begins();
  const Json settings = object_in(folder / "tokenizer_config.json");
  const Json asked = settings.value("add_bos_token", Json());
  found.always_begins =
      found.beginning.has_value() && (asked.is_boolean() ? asked.get<bool>() : begins);
  return found;
}

/// Our documents follow one another: the id that ends one is also the one before the next.
FoundTokenizer of_identity(const TokenizerSource& source, const TokenizerIdentity& identity) {
  FoundTokenizer found = make(source);
  if (identity.document_end) {
    found.ends.push_back(*identity.document_end);
  }
  if (!found.beginning && !found.ends.empty()) {
    found.beginning = found.ends.back();
  }
  return found;
}

/// The tokenizer that the checkpoint records; none if the file that it names is missing.
std::optional<FoundTokenizer> of_record(const fs::path& checkpoint,
                                        const TokenizerIdentity& identity) {
  if (identity.kind == "bytes") {
    return of_identity(TokenizerSource::find("bytes"), identity);
  }
  const fs::path file = checkpoint / identity.file;
  if (identity.file.empty() || !is_there(file)) {
    return std::nullopt;
  }
  const TokenizerSource source = TokenizerSource::find(file.string());
  if (source.identity().hash != identity.hash) {
    throw ConfigError(
        fmt::format("{}: is not the tokenizer that the checkpoint was trained with, {}; "
                    "put that one there, or name one with --tokenizer FILE",
                    file.string(), describe(identity)));
  }
  return of_identity(source, identity);
}

FoundTokenizer of_data(const fs::path& folder) {
  const auto dataset = read_dataset_description(folder);
  if (!dataset) {
    throw ConfigError(fmt::format("{}: names no tokenizer", (folder / "dataset.json").string()));
  }
  const auto file = dataset->tokenizer_file();
  return of_identity(TokenizerSource::find(file ? file->string() : dataset->tokenizer),
                     dataset->identity);
}

std::string looked_at(const fs::path& checkpoint, const RunFacts& run) {
  const auto files_in = [](const fs::path& folder) {
    return fmt::format("{} and tokenizer.model", (folder / "tokenizer.json").string());
  };
  std::string places = files_in(checkpoint);
  for (const fs::path& folder : run.data_folders) {
    places += fmt::format(", {}", (folder / "dataset.json").string());
  }
  if (!run.initial_weights.empty()) {
    places += ", " + files_in(run.initial_weights);
  }
  return places;
}

}  // namespace

FoundTokenizer find_tokenizer(const std::string& asked,
                              const fs::path& checkpoint,
                              const RunFacts& run) {
  if (!asked.empty()) {
    FoundTokenizer found = make(TokenizerSource::find(asked));
    take_huggingface_ids(checkpoint, found);
    return found;
  }
  if (run.tokenizer) {
    if (auto found = of_record(checkpoint, *run.tokenizer)) {
      return std::move(*found);
    }
  }
  if (TokenizerSource::is_in(checkpoint)) {
    return beside_weights(checkpoint);
  }
  for (const fs::path& folder : run.data_folders) {
    if (is_there(folder / "dataset.json")) {
      return of_data(folder);
    }
  }
  if (!run.initial_weights.empty() && TokenizerSource::is_in(run.initial_weights)) {
    return beside_weights(run.initial_weights);
  }
  throw ConfigError(
      fmt::format("{}: does not say which tokenizer its tokens come from (looked for {}); name it: "
                  "--tokenizer bytes, or --tokenizer FILE of a tokenizer.json or a SentencePiece "
                  "model",
                  checkpoint.string(), looked_at(checkpoint, run)));
}

}  // namespace dstrain
