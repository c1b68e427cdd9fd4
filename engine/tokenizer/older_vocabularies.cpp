#include "engine/tokenizer/older_vocabularies.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/tokenizer/base64.h"
#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/byte_level_json.h"
#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/model_vocabulary.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;
using Special = ByteLevelBpe::Special;

/// Calls `visit` with each line, without its end, and its number from 1 on.
template <typename Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    visit(line, number);
  }
}

void read_merges(std::string_view text, const std::string& file, ByteLevelBpe& bpe) {
  for_each_line(text, [&](std::string_view line, int number) {
    if (line.empty() || line.starts_with("#version")) {
      return;
    }
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos ||
        !is_utf8(line)) {
      throw ConfigError(
          fmt::format("{}:{}: expected two tokens with a space between them", file, number));
    }
    bpe.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  });
}

/// Takes from the name of the tokenizer's class how these files split a text.
void take_class(const std::string& name_of_class, const std::string& file, ByteLevelBpe& bpe) {
  std::string_view base = name_of_class;
  if (base.ends_with("Fast")) {
    base.remove_suffix(4);
  }
  if (base == "Qwen2Tokenizer") {
    bpe.split = kQwen2Split;
    bpe.composes_characters = true;
  } else if (!base.empty() && base != "GPT2Tokenizer" && base != "CodeGenTokenizer") {
    throw ConfigError(
        fmt::format("{}: it is not known how a {} splits a text; expected GPT2Tokenizer or "
                    "Qwen2Tokenizer, or "
                    "a tokenizer.json, which transformers' save_pretrained writes",
                    file, name_of_class));
  }
}

void add_token(const std::string& text, std::int64_t id, bool special, ByteLevelBpe& bpe) {
  auto& list = special ? bpe.specials : bpe.added;
  list.push_back({text, static_cast<std::int32_t>(id)});
}

/// Takes the added tokens of tokenizer_config.json: {"50256": {"content": "<|endoftext|>",
/// "special": true}, …}.
void take_added_tokens(const JsonPart& decoder, ByteLevelBpe& bpe) {
  for (const auto& [key, value] : decoder.json().items()) {
    const JsonPart token = decoder[key];
    std::int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ptr != key.data() + key.size() || id < 0 || id >= kMostTokenIds) {
      token.fail("expected a token's id as key");
    }
    add_token(token["content"].text(), id, token.flag_or("special", false), bpe);
  }
}

struct PublishedRanks {
  std::size_t num_ranks;
  const char* name;
  const char* split;  ///< nullptr: GPT-2's
  std::vector<Special> specials;
  const char* begins_with;
};

const std::vector<PublishedRanks>& published_ranks() {
  static const std::vector<PublishedRanks> all = {
      {50256, "r50k_base", nullptr, {{"<|endoftext|>", 50256}}, ""},
      {50280, "p50k_base", nullptr, {{"<|endoftext|>", 50256}}, ""},
      {100256,
       "cl100k_base",
       kCl100kSplit,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}},
       ""},
      {128000,
       "LLaMA 3",
       kGpt4Split,
       {{"<|begin_of_text|>", 128000}, {"<|end_of_text|>", 128001}},
       "<|begin_of_text|>"},
      {151643,
       "Qwen",
       kQwen2Split,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
       ""},
      {199998,
       "o200k_base",
       kGpt4oSplit,
       {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}},
       ""}};
  return all;
}

const PublishedRanks& published(std::size_t num_ranks, const std::string& name) {
  std::string known;
  for (const PublishedRanks& one : published_ranks()) {
    if (one.num_ranks == num_ranks) {
      return one;
    }
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", one.name, one.num_ranks);
  }
  throw ConfigError(fmt::format(
      "{}: a rank file of {} tokens, which does not say which split pattern and special tokens "
      "belong "
      "to it; files known by their number of tokens are {}",
      name, num_ranks, known));
}

using Ranks = std::unordered_map<std::string, std::int32_t>;

std::optional<std::pair<std::string, std::int32_t>> rank_of_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  auto token = decoded_base64(line.substr(0, space));
  std::int32_t rank = -1;
  const char* const end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
  if (!token || token->empty() || parsed.ptr != end || parsed.ec != std::errc() || rank < 0 ||
      rank >= kMostTokenIds) {
    return std::nullopt;
  }
  return std::pair(std::move(*token), rank);
}

Ranks read_ranks(std::string_view text, const std::string& name) {
  Ranks ranks;
  std::set<std::int32_t> seen;
  for_each_line(text, [&](std::string_view line, int number) {
    if (line.empty()) {
      return;
    }
    auto entry = rank_of_line(line);
    if (!entry) {
      throw ConfigError(
          fmt::format("{}:{}: expected a token in base64 and its rank", name, number));
    }
    const std::int32_t rank = entry->second;
    if (!ranks.insert(std::move(*entry)).second || !seen.insert(rank).second) {
      throw ConfigError(
          fmt::format("{}:{}: this token, or this rank, was there before", name, number));
    }
  });
  return ranks;
}

/// tiktoken merges any two tokens that form a token, that of the lowest rank first: so every way to
/// form a token from two others is a merge.
void add_merges(const Ranks& ranks, ByteLevelBpe& bpe) {
  using Way = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::string_view, std::size_t>;
  std::vector<Way> ways;
  for (const auto& [token, rank] : ranks) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      const auto right = left == ranks.end() ? left : ranks.find(token.substr(cut));
      if (right != ranks.end()) {
        ways.emplace_back(rank, left->second, right->second, token, cut);
      }
    }
  }
  std::sort(ways.begin(), ways.end());
  for (const auto& [rank, left, right, token, cut] : ways) {
    bpe.merges.emplace_back(characters_of_bytes(token.substr(0, cut)),
                            characters_of_bytes(token.substr(cut)));
  }
}

}  // namespace

std::string tokenizer_json_of(const VocabularyFiles& files, const std::string& name) {
  const Json vocab = parse_foreign_json(files.vocab_json, name + "/vocab.json");
  const Vocabulary vocabulary = vocabulary_of_object(JsonPart(vocab, name + "/vocab.json"));
  ByteLevelBpe bpe;
  for (std::int32_t id = 0; id < vocabulary.end(); ++id) {
    if (const std::string* const text = vocabulary.text(id)) {
      bpe.vocabulary.emplace(*text, id);
    }
  }
  read_merges(files.merges_txt, name + "/merges.txt", bpe);
  if (!files.tokenizer_config.empty()) {
    const std::string file = name + "/tokenizer_config.json";
    const Json config = parse_foreign_json(files.tokenizer_config, file);
    const JsonPart part(config, file);
    take_class(part.text_or("tokenizer_class", ""), file, bpe);
    bpe.puts_space_first = bpe.split.empty() && part.flag_or("add_prefix_space", false);
    if (const auto decoder = part.find("added_tokens_decoder")) {
      take_added_tokens(*decoder, bpe);
    }
  }
  if (bpe.specials.empty() && bpe.added.empty() && !files.added_tokens.empty()) {
    const std::string file = name + "/added_tokens.json";
    const Json added = parse_foreign_json(files.added_tokens, file);
    const Vocabulary tokens = vocabulary_of_object(JsonPart(added, file));
    for (std::int32_t id = 0; id < tokens.end(); ++id) {
      if (const std::string* const text = tokens.text(id)) {
        add_token(*text, id, text->starts_with('<') && text->ends_with('>'), bpe);
      }
    }
  }
  constexpr std::string_view kEndOfText = "<|endoftext|>";  // GPT-2's one special token
  if (const auto id = vocabulary.find(kEndOfText); id && bpe.specials.empty()) {
    add_token(std::string(kEndOfText), *id, true, bpe);
  }
  return to_tokenizer_json(bpe);
}

bool looks_like_ranks(std::string_view text) {
  return rank_of_line(text.substr(0, text.find('\n'))).has_value();
}

std::string tokenizer_json_of_ranks(std::string_view text, const std::string& name) {
  const Ranks ranks = read_ranks(text, name);
  const PublishedRanks& known = published(ranks.size(), name);
  ByteLevelBpe bpe{.split = known.split == nullptr ? "" : known.split,
                   .whole_words_first = true,
                   .specials = known.specials,
                   .begins_with = known.begins_with};
  for (const auto& [token, rank] : ranks) {
    bpe.vocabulary.emplace(characters_of_bytes(token), rank);
  }
  add_merges(ranks, bpe);
  return to_tokenizer_json(bpe);
}

}  // namespace dstrain
