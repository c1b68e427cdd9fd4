// Writes a tokenizer.json of byte-level BPE, for vocabularies that come in another form or have
// just been trained.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dstrain {

struct ByteLevelBpe {
  std::string split{};               ///< regular expression of a word; empty: GPT-2's
  bool composes_characters = false;  ///< NFC first
  bool puts_space_first = false;     ///< with GPT-2's split alone
  bool whole_words_first = false;    ///< a word that is a token is that token, whatever the merges
  std::map<std::string, std::int32_t> vocabulary{};  ///< in the characters of bytes
  std::vector<std::pair<std::string, std::string>> merges{};
  struct Special {
    std::string text;
    std::int32_t id;
  };
  std::vector<Special> specials{};
  std::vector<Special> added{};  ///< that are text
  std::string begins_with{};     ///< a special one that goes in front of every text
};

std::string to_tokenizer_json(const ByteLevelBpe& bpe);

/// Split patterns as they were published.
extern const char* const kGpt4Split;  ///< cl100k as it was, which LLaMA 3 took over
/// The same as tiktoken itself has it now: white space at the end of a text is one piece, whatever
/// lines end in it.
extern const char* const kCl100kSplit;
extern const char* const kQwen2Split;  ///< GPT-4's with digits one by one
extern const char* const kGpt4oSplit;  ///< o200k

}  // namespace dstrain
