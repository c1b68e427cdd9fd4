// AddedTokens: texts that have an id of their own wherever they occur, before the model sees
// anything: "<|endoftext|>", and words that were added later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/normalizers.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/string_trie.h"
#include "engine/tokenizer/vocabulary.h"

namespace dstrain {

class AddedTokens {
 public:
  /// `list` is the file's "added_tokens", `model` the model's own tokens, `normalizer` the file's
  /// (nullptr: none). Throws ConfigError.
  AddedTokens(const std::optional<JsonPart>& list,
              const Vocabulary& model,
              const Normalizer* normalizer);

  /// A part of a text: [begin, end), an added token or what lies between two.
  struct Part {
    std::size_t begin;
    std::size_t end;
    std::optional<std::int32_t> id;
  };
  /// Tokens are searched for in the text as it came, and some of them once more in the normalized
  /// one.
  enum class In : std::uint8_t { kOriginal, kNormalized };
  /// Replaces `parts` by those of a text, left to right; a text without added tokens is one part.
  void split(std::string_view text, In in, std::vector<Part>& parts) const;

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// The text of an added token, or nullptr.
  [[nodiscard]] const std::string* text(std::int32_t id) const;
  /// Whether this is the text of a special token, which stands for no text.
  [[nodiscard]] bool is_special(const std::string& text) const;
  /// All ids are below it.
  [[nodiscard]] std::int32_t end() const { return end_; }

 private:
  struct Token {
    std::string text;
    bool single_word;    ///< not within a word
    bool strips_left;    ///< takes the spaces in front along
    bool strips_right;   ///< … and those behind
    bool in_normalized;  ///< looked for in the normalized text, itself normalized
    bool special;
  };
  void add(const JsonPart& part, const Vocabulary& model);
  [[nodiscard]] StringTrie trie_of(In in, const Normalizer* normalizer) const;
  [[nodiscard]] bool is_within_word(std::string_view text,
                                    std::size_t begin,
                                    std::size_t end) const;
  [[nodiscard]] bool is_word_character(std::string_view character) const;

  std::unordered_map<std::int32_t, Token> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> order_;  ///< special ones first, then in the order of the file
  std::int32_t next_ = 0;            ///< behind the largest of them
  std::int32_t end_ = 0;
  StringTrie original_;
  StringTrie normalized_;
  Pattern word_character_;
};

}  // namespace dstrain
