// Turns vocabularies of byte-level BPE in the forms from before tokenizer.json into one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// GPT-2's two files, with what else a model folder says about the tokenizer.
struct VocabularyFiles {
  std::string vocab_json{};
  std::string merges_txt{};
  std::string tokenizer_config{};  ///< tokenizer_config.json; empty: there is none
  std::string added_tokens{};      ///< added_tokens.json; the same
};

/// `name` is what errors call the folder. Throws ConfigError, also where the configuration names a
/// class whose splits these files do not hold.
std::string tokenizer_json_of(const VocabularyFiles& files, const std::string& name);

/// Whether a text begins like tiktoken's rank files: lines of a token in base64 and its rank.
bool looks_like_ranks(std::string_view text);

/// Makes a tokenizer.json of a rank file. The file holds neither the split pattern nor the special
/// tokens; those of published files are known, and recognised by their number of tokens. Throws
/// ConfigError.
std::string tokenizer_json_of_ranks(std::string_view ranks, const std::string& name);

}  // namespace dstrain
