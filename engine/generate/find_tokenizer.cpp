#include "engine/generate/find_tokenizer.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/huggingface/tokenizer_files.h"
#include "engine/spec/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModelName = "tokenizer.model";
constexpr std::string_view kPrefix = "sentencepiece:";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// The object in a file, or an empty one.
Json object_in(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
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

FoundTokenizer make(const std::string& name) {
  FoundTokenizer found{.name = name, .tokenizer = Tokenizer::make(name), .ends = {}};
  found.beginning = found.tokenizer->beginning_of_text();
  if (const auto end = found.tokenizer->end_of_text()) {
    found.ends.push_back(*end);
  }
  return found;
}

/// As Hugging Face's own generation: its config names the ids that end a text.
void take_huggingface_ids(const fs::path& folder, FoundTokenizer& found) {
  const Json config = object_in(folder / "config.json");
  const Json generation = object_in(folder / "generation_config.json");
  add_ids(generation.contains("eos_token_id") ? generation : config, "eos_token_id", found.ends);
}

/// A tokenizer.json that convert-checkpoint wrote for a model of bytes.
bool is_of_bytes(const fs::path& folder) {
  return object_in(folder / "tokenizer.json") == Json::parse(byte_tokenizer());
}

bool knows_tokenizer(const fs::path& folder) {
  return is_there(folder / kModelName) || is_of_bytes(folder);
}

FoundTokenizer beside_weights(const fs::path& folder) {
  if (!is_there(folder / kModelName)) {
    FoundTokenizer bytes = make("bytes");
    take_huggingface_ids(folder, bytes);
    return bytes;
  }
  FoundTokenizer found = make(std::string(kPrefix) + (folder / kModelName).string());
  take_huggingface_ids(folder, found);
  const Json settings = object_in(folder / "tokenizer_config.json");
  const Json begins = settings.value("add_bos_token", Json(true));
  found.always_begins = found.beginning.has_value() && begins != false;
  return found;
}

/// dataset.json names the model as it was when the data was made; the folder may have moved since.
FoundTokenizer of_data(const fs::path& folder) {
  const Json dataset = object_in(folder / "dataset.json");
  const Json name = dataset.value("tokenizer", Json());
  if (!name.is_string()) {
    throw ConfigError(fmt::format("{}: names no tokenizer", (folder / "dataset.json").string()));
  }
  std::string made_with = name.get<std::string>();
  if (made_with.starts_with(kPrefix) && is_there(folder / kModelName)) {
    made_with = std::string(kPrefix) + (folder / kModelName).string();
  }
  FoundTokenizer found = make(made_with);
  add_ids(dataset, "append_eod", found.ends);
  // Documents follow one another: what ends one is also what the next begins behind.
  if (!found.beginning && !found.ends.empty()) {
    found.beginning = found.ends.back();
  }
  return found;
}

std::string looked_at(const fs::path& checkpoint, const RunFacts& run) {
  std::string places = fmt::format("{}", (checkpoint / kModelName).string());
  for (const fs::path& folder : run.data_folders) {
    places += fmt::format(", {}", (folder / "dataset.json").string());
  }
  if (!run.initial_weights.empty()) {
    places += fmt::format(", {}", (run.initial_weights / kModelName).string());
  }
  return places;
}

}  // namespace

FoundTokenizer find_tokenizer(const std::string& asked,
                              const fs::path& checkpoint,
                              const RunFacts& run) {
  if (!asked.empty()) {
    const bool is_name = asked == "bytes" || asked.starts_with(kPrefix);
    FoundTokenizer found = make(is_name ? asked : std::string(kPrefix) + asked);
    take_huggingface_ids(checkpoint, found);
    return found;
  }
  if (knows_tokenizer(checkpoint)) {
    return beside_weights(checkpoint);
  }
  for (const fs::path& folder : run.data_folders) {
    if (is_there(folder / "dataset.json")) {
      return of_data(folder);
    }
  }
  if (!run.initial_weights.empty() && knows_tokenizer(run.initial_weights)) {
    return beside_weights(run.initial_weights);
  }
  throw ConfigError(fmt::format(
      "{}: does not say which tokenizer its tokens are of (looked for {}){}; name it: --tokenizer "
      "bytes, or --tokenizer FILE of a SentencePiece model",
      checkpoint.string(), looked_at(checkpoint, run),
      is_there(checkpoint / "tokenizer.json")
          ? "; its tokenizer.json is of a kind that is not read in this version"
          : ""));
}

}  // namespace dstrain
