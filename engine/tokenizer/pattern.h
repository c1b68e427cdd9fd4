// Pattern: a regular expression of a tokenizer's file, or a text that is searched for as it is.
//
// The library is Oniguruma, since the tokenizers of these files were made with it: `\s`, `\w`,
// `(?i:…)`, possessive quantifiers and what is a letter mean the same here to the last character.
// PCRE2 differs in each (with UCP `\s` holds U+180E, `\w` no marks, `{1,3}+` is possessive).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "engine/tokenizer/json_part.h"

namespace dstrain {

class Pattern {
 public:
  /// Takes an expression in Oniguruma's Ruby syntax. Throws ConfigError if it is not one.
  static Pattern regular_expression(const std::string& expression);
  static Pattern literal(std::string text);
  /// {"Regex": "…"} or {"String": "…"}.
  static Pattern from_json(const JsonPart& part);

  /// The matches in a text, from left to right; an empty one does not directly follow another.
  class Search;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;  ///< shared by copies of the pattern; none: a literal
  std::string text_;
};

/// A search, to be used by one thread; the pattern must outlive it.
class Pattern::Search {
 public:
  explicit Search(const Pattern& pattern);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;
  ~Search();

  /// Begins to search another text, which must outlive the search.
  void start(std::string_view text);
  /// Whether there is another match, [begin, end). Throws ConfigError if the pattern takes so many
  /// steps on this text that it would not end in a reasonable time.
  bool next();
  [[nodiscard]] std::size_t begin() const { return begin_; }
  [[nodiscard]] std::size_t end() const { return end_; }

 private:
  struct State;
  bool next_literal();
  [[nodiscard]] bool find_from(std::size_t from);

  const Pattern& pattern_;
  std::unique_ptr<State> state_;
  std::string_view text_;
  std::size_t from_ = 0;
  std::size_t last_end_ = 0;  ///< of the last match; npos: none yet
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace dstrain
