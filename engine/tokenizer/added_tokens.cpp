#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

std::size_t begin_of_spaces_before(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0) {
    std::size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
      --at;
    }
    std::size_t behind = at;
    if (!is_space(next_character(text, behind))) {
      break;
    }
    begin = at;
  }
  return begin;
}

std::size_t end_of_spaces_behind(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  for (std::size_t at = begin; at < text.size() && is_space(next_character(text, at));) {
    end = at;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const std::optional<JsonPart>& list,
                         const Vocabulary& model,
                         const Normalizer* normalizer)
    : end_(model.end()),
      // Defined as in UTS 18 (annex C).
      word_character_(
          Pattern::regular_expression(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])")) {
  if (list) {
    for (const JsonPart& part : list->items()) {
      add(part, model);
    }
  }
  std::stable_partition(order_.begin(), order_.end(),
                        [&](std::int32_t id) { return tokens_.at(id).special; });
  original_ = trie_of(In::kOriginal, nullptr);
  normalized_ = trie_of(In::kNormalized, normalizer);
}

void AddedTokens::add(const JsonPart& part, const Vocabulary& model) {
  const std::string& text = part["content"].text();
  const auto id = static_cast<std::int32_t>(part["id"].number(kMostTokenIds - 1));
  if (text.empty()) {
    return;
  }
  // transformers does not take the file's id: it takes the vocabulary's, or the next free one.
  const std::int32_t next = next_ < model.count() ? model.count() : next_;
  const std::int32_t expected = model.find(text).value_or(find(text).value_or(next));
  if (expected != id) {
    part.fail(fmt::format(
        "\"{}\" has id {} here, but transformers gives it id {}, {}", text, id, expected,
        model.find(text) ? "that of the vocabulary" : "the next after those before"));
  }
  const bool special = part.flag_or("special", false);
  const auto [token, is_new] =
      tokens_.try_emplace(id, Token{.text = text,
                                    .single_word = part.flag_or("single_word", false),
                                    .strips_left = part.flag_or("lstrip", false),
                                    .strips_right = part.flag_or("rstrip", false),
                                    .in_normalized = part.flag_or("normalized", !special),
                                    .special = special});
  if (!is_new || !ids_.emplace(text, id).second) {
    part.fail(fmt::format("\"{}\" with id {}: an added token before it has this {}", text, id,
                          is_new ? "text" : "id"));
  }
  order_.push_back(id);
  next_ = std::max(next_, id + 1);
  end_ = std::max(end_, id + 1);
}

StringTrie AddedTokens::trie_of(In in, const Normalizer* normalizer) const {
  std::map<std::string, std::int32_t> texts;
  for (const std::int32_t id : order_) {
    const Token& token = tokens_.at(id);
    if (token.in_normalized != (in == In::kNormalized)) {
      continue;
    }
    SectionText section{.text = token.text};
    if (normalizer != nullptr) {
      normalizer->apply(section);
    }
    if (!section.text.empty()) {
      texts.emplace(std::move(section.text), id);
    }
  }
  return StringTrie({texts.begin(), texts.end()});
}

void AddedTokens::split(std::string_view text, In in, std::vector<Part>& parts) const {
  parts.clear();
  const StringTrie& trie = in == In::kOriginal ? original_ : normalized_;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    // Find the longest of those that begin here.
    std::int32_t id = StringTrie::kNone;
    std::size_t behind = at;
    std::uint32_t node = StringTrie::kRoot;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = trie.next(node, text[i]);
      if (node == StringTrie::kRoot) {
        break;
      }
      if (trie.number(node) != StringTrie::kNone) {
        id = trie.number(node);
        behind = i + 1;
      }
    }
    if (id == StringTrie::kNone) {
      ++at;
      continue;
    }
    const Token& token = tokens_.at(id);
    std::size_t begin = std::exchange(at, behind);
    if (token.single_word && is_within_word(text, begin, behind)) {
      continue;
    }
    if (token.strips_left) {
      begin = std::max(begin_of_spaces_before(text, begin), done);
    }
    const std::size_t end = token.strips_right ? end_of_spaces_behind(text, behind) : behind;
    if (done < begin) {
      parts.push_back({done, begin, std::nullopt});
    }
    parts.push_back({begin, end, id});
    done = end;
  }
  if (done < text.size()) {
    parts.push_back({done, text.size(), std::nullopt});
  }
}

bool AddedTokens::is_within_word(std::string_view text, std::size_t begin, std::size_t end) const {
  std::size_t before = begin;
  while (before > 0 && (static_cast<unsigned char>(text[--before]) & 0xC0U) == 0x80U) {
  }
  return (begin > 0 && is_word_character(text.substr(before, begin - before))) ||
         (end < text.size() && is_word_character(text.substr(end, bytes_of_character(text[end]))));
}

bool AddedTokens::is_word_character(std::string_view character) const {
  Pattern::Search search(word_character_);
  search.start(character);
  return search.next();
}

std::optional<std::int32_t> AddedTokens::find(std::string_view text) const {
  const auto found = ids_.find(std::string(text));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* AddedTokens::text(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.text;
}

bool AddedTokens::is_special(const std::string& text) const {
  const auto found = ids_.find(text);
  return found != ids_.end() && tokens_.at(found->second).special;
}

}  // namespace dstrain
