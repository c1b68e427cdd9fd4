#include "engine/tokenizer/byte_level_json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::json;

Json pre_tokenizer_of(const ByteLevelBpe& bpe) {
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", bpe.puts_space_first},
                        {"trim_offsets", false},
                        {"use_regex", bpe.split.empty()}};
  if (bpe.split.empty()) {
    return byte_level;
  }
  const Json split{{"type", "Split"},
                   {"pattern", {{"Regex", bpe.split}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
}

Json added_tokens_of(const ByteLevelBpe& bpe) {
  Json list = Json::array();
  const auto add = [&](const ByteLevelBpe::Special& token, bool special) {
    list.push_back({{"id", token.id},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", special}});
  };
  for (const auto& token : bpe.specials)
    add(token, true);
  for (const auto& token : bpe.added)
    add(token, false);
  std::sort(list.begin(), list.end(),
            [](const Json& a, const Json& b) { return a["id"] < b["id"]; });
  return list;
}

Json post_processor_of(const ByteLevelBpe& bpe) {
  for (const auto& token : bpe.specials) {
    if (token.text == bpe.begins_with) {
      const Json special{{"SpecialToken", {{"id", token.text}, {"type_id", 0}}}};
      const Json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
      const Json other{{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
      const Json about{{"id", token.text},
                       {"ids", Json::array({token.id})},
                       {"tokens", Json::array({token.text})}};
      return {{"type", "TemplateProcessing"},
              {"single", Json::array({special, text})},
              {"pair", Json::array({special, text, other})},
              {"special_tokens", {{token.text, about}}}};
    }
  }
  return nullptr;
}

}  // namespace

const char* const kGpt4Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kCl100kSplit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++\z|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string to_tokenizer_json(const ByteLevelBpe& bpe) {
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges) {
    merges.push_back(Json::array({left, right}));
  }
  // Added tokens are in the vocabulary too: otherwise transformers would number them itself.
  std::map<std::string, std::int32_t> vocabulary = bpe.vocabulary;
  for (const auto* list : {&bpe.specials, &bpe.added}) {
    for (const auto& token : *list) {
      vocabulary.emplace(token.text, token.id);
    }
  }
  Json model{{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr},
             {"fuse_unk", false},
             {"byte_fallback", false},
             {"ignore_merges", bpe.whole_words_first},
             {"vocab", vocabulary},
             {"merges", std::move(merges)}};
  const Json normalizer = bpe.composes_characters ? Json{{"type", "NFC"}} : Json();
  const Json decoder{{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", false},
                     {"use_regex", false}};
  const Json document{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", added_tokens_of(bpe)},
                      {"normalizer", normalizer},
                      {"pre_tokenizer", pre_tokenizer_of(bpe)},
                      {"post_processor", post_processor_of(bpe)},
                      {"decoder", decoder},
                      {"model", std::move(model)}};
  return document.dump() + "\n";
}

}  // namespace dstrain
