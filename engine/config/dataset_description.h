// DatasetDescription: what prepare-data recorded in dataset.json beside the token files: which
// tokenizer made them, and what is in them. Files made elsewhere have none.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "engine/config/tokenizer_identity.h"

namespace dstrain {

struct DatasetDescription {
  std::filesystem::path file;  ///< the dataset.json
  std::string tokenizer;  ///< "bytes", "sentencepiece:MODEL", "huggingface:JSON", …, as it was
                          ///< named then
  TokenizerIdentity identity;                  ///< its hash is empty where the model's file is gone
  std::map<std::string, std::string> content;  ///< of "train", "validation": a hash of all ids
  std::string samples{};  ///< "conversations", "pairs", "rated answers"; else empty

  /// Whether identity may be compared with others.
  [[nodiscard]] bool knows_tokenizer() const {
    return identity.kind == "bytes" || !identity.hash.empty();
  }
  /// The file or folder that the tokenizer is read from: beside the data, or where it was when they
  /// were made. Empty for bytes, or if it is gone.
  [[nodiscard]] std::optional<std::filesystem::path> tokenizer_file() const;
};

/// Whether a source's name is that of JSON lines, compressed or not: "chats.jsonl", "a.ndjson.gz".
bool names_json_lines(const std::string& source);

/// The description in a folder; nothing if it holds no dataset.json, or one that names no
/// tokenizer. Descriptions by an older dstrain say less: then the tokenizer's file is read to know
/// it.
std::optional<DatasetDescription> read_dataset_description(const std::filesystem::path& folder);

/// The description of the token files of data.train or data.validation, if the folder's description
/// is about these.
std::optional<DatasetDescription> description_of_prefix(const std::string& prefix);

}  // namespace dstrain
