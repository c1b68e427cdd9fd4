// TokenizerSource: where a tokenizer comes from, by the name that a user gives, and the files that
// go along with ids and weights so that they can be read later. The name is
//
//   bytes                256 ids, one a byte
//   sentencepiece:FILE   a model of SentencePiece
//   huggingface:PATH     a tokenizer.json, or a model folder with one
//   tiktoken:FILE        a rank file of tiktoken
//   PATH                 a file of any of these, which its content tells, or a model folder with
//                        tokenizer.json, tokenizer.model, or vocab.json and merges.txt
//
// Rank files, and vocab.json with merges.txt, become a tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/tokenizer_identity.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

struct TokenizerSource {
  std::string name{};  ///< with its kind: "huggingface:model/tokenizer.json"
  std::string kind{};  ///< TokenizerIdentity::kind
  /// The files' names and contents. The first is the one that makes the tokenizer; "bytes" has
  /// none.
  std::vector<std::pair<std::string, std::string>> files{};

  /// Throws ConfigError.
  static TokenizerSource find(const std::string& name);
  /// Whether a folder holds files of a tokenizer that find() takes.
  static bool is_in(const std::filesystem::path& folder);

  /// The folder that the tokenizer was found in; empty for bytes.
  [[nodiscard]] std::filesystem::path folder() const;
  /// Kind, hash and file; neither size nor end of documents.
  [[nodiscard]] TokenizerIdentity identity() const;
  /// Throws ConfigError if the files hold no tokenizer.
  [[nodiscard]] std::unique_ptr<Tokenizer> make() const;
};

}  // namespace dstrain
