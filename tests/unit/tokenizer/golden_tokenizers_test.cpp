// Ids and decoded texts are those of the tokenizers that these files were made for.
#include "tests/unit/tokenizer/golden_tokenizers.h"

#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

using nlohmann::json;
using test::golden_tokenizer_json;
using test::golden_tokenizer_names;
using test::golden_tokenizers;
using Ids = std::vector<std::int32_t>;

json cases_of(const std::string& name) {
  return json::parse(read_regular_file((golden_tokenizers() / (name + ".cases")).string()).text);
}

Ids encoded(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST_CASE("every kind of tokenizer.json gives the ids of the tokenizers package, and its text",
          "[tokenizer]") {
  REQUIRE(golden_tokenizer_names().size() >= 19);
  for (const std::string& name : golden_tokenizer_names()) {
    CAPTURE(name);
    const auto tokenizer = make_huggingface_tokenizer(golden_tokenizer_json(name), name);
    for (const json& expected : cases_of(name)) {
      const auto text = expected["text"].get<std::string>();
      CAPTURE(text);
      const Ids ids = encoded(*tokenizer, text);
      CHECK(ids == expected["ids"].get<Ids>());
      CHECK(encoded(*tokenizer, text) == ids);  // now that its words are remembered
      CHECK(as_utf8(tokenizer->decode(ids)) == expected["decoded"].get<std::string>());
      // The post-processor's own go in front and behind.
      const Ids around = expected["around"].get<Ids>();
      CHECK(tokenizer->always_begins() ==
            (around.size() > ids.size() && around.front() == tokenizer->beginning_of_text()));
    }
  }
}

TEST_CASE("threads that share a tokenizer get the same ids as one alone", "[tokenizer]") {
  const auto tokenizer = make_huggingface_tokenizer(golden_tokenizer_json("llama3"), "llama3");
  const json cases = cases_of("llama3");
  std::vector<int> wrong(4, 0);
  {
    std::vector<std::jthread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round) {
          for (const json& expected : cases) {
            const Ids ids = encoded(*tokenizer, expected["text"].get_ref<const std::string&>());
            count += ids == expected["ids"].get<Ids>() ? 0 : 1;
          }
        }
      });
    }
  }
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("bytes that are no UTF-8 count as the replacements that Python reads them as",
          "[tokenizer]") {
  const auto tokenizer = make_huggingface_tokenizer(golden_tokenizer_json("gpt2"), "gpt2");
  CHECK(encoded(*tokenizer, "a\xE2\x82 b\xFF") == encoded(*tokenizer, "a\uFFFD b\uFFFD"));
  CHECK(encoded(*tokenizer, "\xED\xA0\x80") == encoded(*tokenizer, "\uFFFD\uFFFD\uFFFD"));
}

}  // namespace
}  // namespace dstrain
