// Contents that a tokenizer.json may not have, each with its error.
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/tokenizer/huggingface_tokenizer.h"
#include "tests/unit/tokenizer/golden_tokenizers.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using test::golden_tokenizer_json;

json small() {
  return json::parse(golden_tokenizer_json("gpt2"));
}

void load(const json& document) {
  static_cast<void>(make_huggingface_tokenizer(document.dump(), "t.json"));
}

/// The small tokenizer with the value at a path replaced.
json with(const char* path, const json& value) {
  json document = small();
  document[json::json_pointer(path)] = value;
  return document;
}

TEST_CASE("a component that is not known is named, with its place", "[tokenizer]") {
  CHECK_NOTHROW(load(small()));
  CHECK_THROWS_WITH(
      load(with("/normalizer", {{"type", "BertNormalizer"}})),
      Contains("t.json: /normalizer/type: normalizer \"BertNormalizer\" is not supported"));
  CHECK_THROWS_WITH(
      load(with("/pre_tokenizer",
                {{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}}}})),
      Contains("/pre_tokenizer/pretokenizers/0/type: pre-tokenizer \"UnicodeScripts\" is not "
               "supported"));
  CHECK_THROWS_WITH(load(with("/model/type", "WordPiece")),
                    Contains("/model/type: model \"WordPiece\" is not supported"));
  CHECK_THROWS_WITH(load(with("/decoder", {{"type", "CTC"}})),
                    Contains("/decoder/type: decoder \"CTC\" is not supported"));
  CHECK_THROWS_WITH(load(with("/post_processor", {{"type", "Other"}})),
                    Contains("/post_processor/type: post-processor \"Other\" is not supported"));
}

TEST_CASE("merges and vocabularies that do not fit are refused", "[tokenizer]") {
  CHECK_THROWS_WITH(load(with("/model/merges/3", {"zz", "q"})),
                    Contains("/model/merges: merge 3: \"zz\" is not in the vocabulary"));
  CHECK_THROWS_WITH(load(with("/model/merges/0", "a b c")),
                    Contains("merge 0: expected two tokens"));
  CHECK_THROWS_WITH(load(with("/model/merges/1", 7)), Contains("merge 1: expected two tokens"));
  CHECK_THROWS_WITH(load(with("/model/vocab/new", 5)), Contains("have the same id, 5"));
  CHECK_THROWS_WITH(load(with("/model/vocab/new", -1)), Contains("\"new\": expected an id"));
  CHECK_THROWS_WITH(load(with("/model/vocab/new", 4000000000)),
                    Contains("\"new\": expected an id"));
  CHECK_THROWS_WITH(load(with("/model/vocab/new", json::array())),
                    Contains("\"new\": expected an id from 0 to 16777215, found array"));
  CHECK_NOTHROW(load(with("/model/vocab/new", 1000)));  // a gap
  CHECK_THROWS_WITH(load(with("/model/dropout", 0.1)),
                    Contains("/model/dropout: leaves merges out"));
  CHECK_NOTHROW(load(with("/model/dropout", 0.0)));
  CHECK_THROWS_WITH(load(with("/added_tokens/0/id", 3)), Contains("/added_tokens/0: "));
  CHECK_THROWS_WITH(load(with("/added_tokens/0/content", 3)),
                    Contains("/added_tokens/0/content: expected a text, found 3"));
}

TEST_CASE("what is no tokenizer is refused with line and column", "[tokenizer]") {
  const auto load_text = [](const std::string& text) {
    static_cast<void>(make_huggingface_tokenizer(text, "t.json"));
  };
  CHECK_THROWS_WITH(load_text(""), Contains("t.json: not JSON"));
  CHECK_THROWS_WITH(load_text("{\n \"model\": }"), Contains("line 2, column 11"));
  CHECK_THROWS_WITH(load_text("[]"), Contains("no \"model\""));
  CHECK_THROWS_WITH(load_text("{}"), Contains("no \"model\""));
  const std::string whole = golden_tokenizer_json("gpt2");
  CHECK_THROWS_WITH(load_text(whole.substr(0, whole.size() / 2)), Contains("t.json: not JSON"));
  CHECK_THROWS_WITH(load_text(std::string(1 << 20, '[')), Contains("nested deeper"));
  CHECK_THROWS_WITH(load_text(R"({"model": {"type": "BPE", "merges": []}})"),
                    Contains("/model: \"vocab\" is missing"));
}

TEST_CASE("a pattern that is none, or that explodes, is reported", "[tokenizer]") {
  const auto split = [](const char* pattern) {
    return with("/pre_tokenizer", {{"type", "Sequence"},
                                   {"pretokenizers",
                                    {{{"type", "Split"},
                                      {"pattern", {{"Regex", pattern}}},
                                      {"behavior", "Isolated"},
                                      {"invert", false}},
                                     {{"type", "ByteLevel"}, {"use_regex", false}}}}});
  };
  CHECK_THROWS_WITH(load(split("(a")),
                    Contains("/pre_tokenizer/pretokenizers/0/pattern/Regex: \"(a\" is "
                             "not a regular expression"));
  const auto tokenizer = make_huggingface_tokenizer(split("(a|aa|a?a)+$").dump(), "t.json");
  std::vector<std::int32_t> ids;
  CHECK_NOTHROW(tokenizer->encode("aaaa", ids));
  CHECK_THROWS_WITH(tokenizer->encode(std::string(4000, 'a') + "b", ids),
                    Contains("the tokenizer's pattern \"(a|aa|a?a)+$\" takes too many steps"));
}

TEST_CASE("ids outside the vocabulary are refused, those in a gap say nothing", "[tokenizer]") {
  const auto tokenizer =
      make_huggingface_tokenizer(with("/model/vocab/new", 1000).dump(), "t.json");
  CHECK(tokenizer->vocab_size() == 1001);
  CHECK(tokenizer->decode(std::vector<std::int32_t>{999}).empty());
  CHECK(tokenizer->decode(std::vector<std::int32_t>{1000}) == "new");
  CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{1001}), ConfigError);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{-1}), ConfigError);
}

}  // namespace
}  // namespace dstrain
