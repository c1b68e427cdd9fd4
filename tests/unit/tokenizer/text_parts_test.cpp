// A document that is too long for one call, cut where the tokenizer says.
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/unicode_text.h"
#include "tests/unit/tokenizer/golden_tokenizers.h"

namespace dstrain {
namespace {

using test::golden_tokenizer_json;
using test::golden_tokenizer_names;
using Ids = std::vector<std::int32_t>;

std::string lines() {
  std::string text = "no space in front\n";
  for (int i = 0; i < 400; ++i) {
    text += i % 7 == 0 ? "\n" : "";
    text += i % 5 == 0 ? "    if (x_" + std::to_string(i) + " == 1) {\t// it's so\n"
                       : "Words of line " + std::to_string(i * i) + ", and 你好 é.\n";
  }
  return text;
}

Ids in_parts(const Tokenizer& tokenizer, std::string_view text, std::size_t longest) {
  Ids ids;
  auto place = TextPlace::kBegins;
  while (!text.empty()) {
    std::string_view part = text.substr(0, longest);
    if (part.size() < text.size()) {
      part = part.substr(0, tokenizer.length_to_cut(part));
    }
    tokenizer.encode_part(part, place, ids);
    text.remove_prefix(part.size());
    place = TextPlace::kContinues;
  }
  return ids;
}

TEST_CASE("a long document has the same ids in parts as whole", "[tokenizer]") {
  const std::string text = lines();
  for (const std::string& name : golden_tokenizer_names()) {
    // T5's and XLNet's rules join lines and take spaces away at the ends of what they are given.
    if (name == "t5" || name == "xlnet") continue;
    CAPTURE(name);
    const auto tokenizer = make_huggingface_tokenizer(golden_tokenizer_json(name), name);
    Ids whole;
    tokenizer->encode(text, whole);
    for (const std::size_t longest : {700U, 1500U, 4096U}) {
      CAPTURE(longest);
      CHECK(in_parts(*tokenizer, text, longest) == whole);
    }
  }
}

TEST_CASE("a text that offers no place to cut is cut between characters", "[tokenizer]") {
  const auto tokenizer = make_huggingface_tokenizer(golden_tokenizer_json("gpt2"), "gpt2");
  CHECK(tokenizer->length_to_cut("abc") == 2);
  CHECK(tokenizer->length_to_cut("ab\xE2\x82") == 2);
  CHECK(tokenizer->length_to_cut("x") == 1);
  CHECK(tokenizer->length_to_cut("one\ntwo") == 4);
}

TEST_CASE("a Hangul syllable keeps what stands behind it and is no consonant of it",
          "[tokenizer]") {
  // The results of Python's unicodedata.normalize, release 14.
  CHECK(normalized("\u1110\u116e\u11a7", NormalForm::kNfc) == "\ud22c\u11a7");
  CHECK(normalized("\ud22c\u11a7\u0301x", NormalForm::kNfkc) == "\ud22c\u11a7\u0301x");
  CHECK(normalized("\u1110\u116e\u11a8", NormalForm::kNfc) == "\ud22d");
  CHECK(normalized("\u11a7e\u0301\u11a7", NormalForm::kNfc) == "\u11a7\u00e9\u11a7");
  CHECK(normalized("\ud22c\u11a7", NormalForm::kNfd) == "\u1110\u116e\u11a7");
}

}  // namespace
}  // namespace dstrain
