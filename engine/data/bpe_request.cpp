#include "engine/data/bpe_request.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/tokenizer/byte_level_json.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/vocabulary.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {

std::vector<std::string> BpeTraining::specials() const {
  return document_end.empty() ? std::vector<std::string>{} : std::vector{document_end};
}

std::string split_expression(const std::string& name) {
  constexpr std::pair<std::string_view, const char* const*> kNames[] = {
      {"gpt4", &kGpt4Split}, {"gpt4o", &kGpt4oSplit}, {"qwen2", &kQwen2Split}};
  if (name == "gpt2") {
    return "";
  }
  for (const auto& [known, expression] : kNames) {
    if (name == known) {
      return *expression;
    }
  }
  const bool is_word = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  });
  if (is_word) {
    throw ConfigError(fmt::format(
        "--split-pattern \"{}\": expected gpt2, gpt4, gpt4o, qwen2, or a regular expression that "
        "matches the pieces of a text",
        name));
  }
  try {
    static_cast<void>(Pattern::regular_expression(name));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--split-pattern: {}", error.what()));
  }
  return name;
}

void check_bpe_training(const BpeTraining& training) {
  static_cast<void>(split_expression(training.split));
  const std::string& end = training.document_end;
  if (!end.empty() && (!is_utf8(end) || length_of_whole_characters(end) == end.size())) {
    throw ConfigError(
        fmt::format("--end-token \"{}\": expected a text of two characters or more that documents "
                    "do not hold, such as <|endoftext|>, or nothing for no such token",
                    as_utf8(end)));
  }
  constexpr std::int64_t kBytes = 256;
  const std::int64_t least = kBytes + std::ssize(training.specials());
  if (training.vocab_size <= least || training.vocab_size > kMostTokenIds) {
    throw ConfigError(fmt::format(
        "--vocab-size {}: the 256 bytes{} are always in the vocabulary; expected {} to {}",
        training.vocab_size, end.empty() ? "" : " and the end token", least + 1, kMostTokenIds));
  }
}

}  // namespace dstrain
