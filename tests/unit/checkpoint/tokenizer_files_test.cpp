// Tokenizer files for transformers; scripts/check_huggingface loads them there.
#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"

#include <set>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace dstrain;
using nlohmann::json;

TEST_CASE("a SentencePiece model says whether it puts a space in front", "[checkpoint]") {
  const auto adds = [](const std::string& model) {
    return json::parse(sentencepiece_config(model))["add_prefix_space"].get<bool>();
  };
  // Fields of ModelProto by hand: 1 a piece, 2 trainer_spec, 3 normalizer_spec.
  const std::string piece("\x0a\x08\x0a\x01\x61\x15\x00\x00\x80\x3f", 10);
  const std::string trainer("\x12\x02\x18\x00", 4);  // its field 3 is something else
  CHECK(adds(""));
  CHECK(adds(piece + trainer));
  CHECK(adds(piece + trainer + std::string("\x1a\x06\x0a\x02id\x20\x00", 8)));
  CHECK_FALSE(adds(piece + trainer + std::string("\x1a\x06\x0a\x02id\x18\x00", 8)));
  CHECK(adds(piece + trainer + std::string("\x1a\x06\x0a\x02id\x18\x01", 8)));
  CHECK(adds(std::string("\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11)));  // cut short
}

TEST_CASE("the tokenizer of bytes has every byte once, under its own number", "[checkpoint]") {
  const json tokenizer = json::parse(byte_tokenizer());
  const json& vocabulary = tokenizer["model"]["vocab"];
  CHECK(vocabulary.size() == 256);
  std::set<int> ids;
  for (const auto& [character, id] : vocabulary.items()) {
    ids.insert(id.get<int>());
  }
  CHECK(ids.size() == 256);
  CHECK(*ids.rbegin() == 255);
  CHECK(vocabulary["A"] == 65);
  CHECK(vocabulary["Ġ"] == 32);  // GPT-2's spelling of a space
  CHECK(vocabulary["Ċ"] == 10);  // and of a new line
  CHECK(vocabulary["é"] == 0xE9);
  CHECK(tokenizer["pre_tokenizer"]["add_prefix_space"] == false);
}
