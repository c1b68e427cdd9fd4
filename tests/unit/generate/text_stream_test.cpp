// Text as it is handed out while tokens come: whole characters, nothing that is taken back.
#include "engine/generate/text_stream.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/data/sentencepiece_training.h"
#include "engine/tokenizer/whole_characters.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Pieces = std::vector<std::string>;

std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// The output for each token of `text`, and at the end.
Pieces streamed(const Tokenizer& tokenizer,
                const std::string& text,
                const std::vector<std::string>& stops = {},
                const std::string& prompt = "") {
  TextStream stream(tokenizer, encoded(tokenizer, prompt), stops);
  Pieces pieces;
  for (const std::int32_t id : encoded(tokenizer, text)) {
    pieces.push_back(stream.push(id));
  }
  pieces.push_back(stream.finish());
  return pieces;
}

std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
  }
  return text;
}

TEST_CASE("bytes come out as whole characters", "[generate][text]") {
  const auto bytes = Tokenizer::make("bytes");
  CHECK(streamed(*bytes, "aé漢🙂b") ==
        Pieces{"a", "", "é", "", "", "漢", "", "", "", "🙂", "b", ""});
  // Half a character at the end, and bytes that begin none.
  CHECK(streamed(*bytes, "x\xE2\x82") == Pieces{"x", "", "", "\uFFFD"});
  CHECK(streamed(*bytes, "\xFF\x80z") == Pieces{"\uFFFD", "\uFFFD", "z", ""});
  // The second byte shows that the first began nothing.
  CHECK(streamed(*bytes, "\xE2(") == Pieces{"", "\uFFFD(", ""});
  CHECK(streamed(*bytes, "\xE2\x82(") == Pieces{"", "", "\uFFFD(", ""});
}

TEST_CASE("what is no UTF-8 becomes replacements", "[generate][text]") {
  CHECK(as_utf8("plain") == "plain");
  CHECK(as_utf8("\xC0\xAF") == "\uFFFD\uFFFD");                      // too long a form of "/"
  CHECK(as_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");            // a surrogate
  CHECK(as_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  CHECK(as_utf8("\xF4\x8F\xBF\xBF") == "\xF4\x8F\xBF\xBF");          // the last character
  CHECK(as_utf8("\xED\x9F\xBF\xEE\x80\x80") == "\xED\x9F\xBF\xEE\x80\x80");
}

TEST_CASE("characters that lie in several tokens of a tokenizer.json come out whole",
          "[generate][text]") {
  const std::string text =
      "na\u00efve 漢字 the 🙂\u00e9 and 👩‍👩‍👧 learns\n\n  \u0e44\u0e17\u0e22";
  for (const char* name :
       {"gpt2", "llama3", "qwen2", "byte_normalizer", "llama2_legacy", "gemma"}) {
    CAPTURE(name);
    const auto tokenizer =
        Tokenizer::make(std::string(DSTRAIN_UNPACKED) + "/tokenizers/" + name + ".json");
    const std::vector<std::int32_t> ids = encoded(*tokenizer, text);
    std::size_t inside = 0;  // tokens that end within a character
    for (std::size_t i = 1; i < ids.size(); ++i) {
      const std::string before = tokenizer->decode(std::span(ids).first(i));
      inside += !is_utf8(before) || before.ends_with(kReplacement) ? 1 : 0;
    }
    REQUIRE(inside >= 10);
    const Pieces pieces = streamed(*tokenizer, text);
    CHECK(joined(pieces) == as_utf8(tokenizer->decode(ids)));
    CHECK(std::count(pieces.begin(), pieces.end(), "") >= static_cast<std::ptrdiff_t>(inside));
    for (const std::string& piece : pieces) {
      CHECK(is_utf8(piece));
      CHECK(piece.find(kReplacement) == std::string::npos);
    }
    CHECK(joined(streamed(*tokenizer, text, {"🙂"})).ends_with("漢字 the "));
  }
}

TEST_CASE("a text ends before the first stop text", "[generate][text]") {
  const auto bytes = Tokenizer::make("bytes");
  // "ab" may become "abc": it waits.
  CHECK(streamed(*bytes, "xabyabcz", {"abc"}) == Pieces{"x", "", "", "aby", "", "", "", "", ""});
  CHECK(joined(streamed(*bytes, "one. two", {"\n", ". "})) == "one");
  CHECK(joined(streamed(*bytes, "aabaac", {"aac"})) == "aab");
  // It did not come after all.
  CHECK(streamed(*bytes, "xab", {"abc"}) == Pieces{"x", "", "", "ab"});
  TextStream stream(*bytes, {}, {"!"});
  CHECK(stream.push('a') == "a");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.push('!').empty());
  CHECK(stream.stopped());
  // A stop text of several bytes to a character.
  CHECK(joined(streamed(*bytes, "a漢b", {"漢"})) == "a");
}

TEST_CASE("SentencePiece's tokens come out as the text they were made from", "[generate][text]") {
  const test::ScratchFolder folder;
  std::string text;
  for (int line = 0; line < 3000; ++line) {
    text += "the model learns " + std::to_string(line) + " words of the text; ";
    text += line % 3 == 0 ? "\n" : "it is long ";
  }
  test::write_file(folder / "text", text);
  const InputFile file{.path = folder / "text", .bytes = static_cast<std::int64_t>(text.size())};
  const auto tokenizer = make_sentencepiece_tokenizer(
      train_sentencepiece({&file}, {.vocab_size = 330, .seed = 1}, [] { return false; }));
  // Characters it has never seen are several byte pieces.
  const std::string strange = " the 漢字 learns 🙂é of\n\n  it";
  const Pieces pieces = streamed(*tokenizer, strange, {}, "the model");
  CHECK(joined(pieces) == strange);
  for (const std::string& piece : pieces) {
    CHECK(as_utf8(piece) == piece);
    CHECK(piece.find(kReplacement) == std::string::npos);
  }
  CHECK(joined(streamed(*tokenizer, strange, {"learns"}, "x")) == " the 漢字 ");
}

}  // namespace
}  // namespace dstrain
