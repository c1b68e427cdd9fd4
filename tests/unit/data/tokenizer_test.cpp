#include "engine/tokenizer/tokenizer.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/sentencepiece_training.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using test::ScratchFolder;

std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// English-like lines with indentation, numbers, tabs: enough for a small vocabulary.
std::string sample_text() {
  const char* words[] = {"tensor", "rank", "gradient", "layer", "window", "token", "shard", "plan"};
  std::string text;
  std::uint32_t state = 1;
  for (int line = 0; line < 4000; ++line) {
    text += std::string(static_cast<std::size_t>(line % 3) * 2, ' ');
    for (int word = 0; word < 8; ++word) {
      state = state * 1664525U + 1013904223U;
      text += words[state >> 29];
      text += (state >> 20) % 5 == 0 ? "_size " : " ";
    }
    text += std::to_string(state % 1000) + (line % 7 == 0 ? "\t;\n" : "\n");
  }
  return text;
}

std::unique_ptr<Tokenizer> train_on(const ScratchFolder& folder,
                                    const std::string& text,
                                    std::int64_t vocab_size) {
  test::write_file(folder / "text", text);
  const InputFile file{.path = folder / "text", .bytes = static_cast<std::int64_t>(text.size())};
  return make_sentencepiece_tokenizer(
      train_sentencepiece({&file}, {.vocab_size = vocab_size, .seed = 1}, [] { return false; }));
}

TEST_CASE("bytes are their own ids", "[data][tokenizer]") {
  const auto tokenizer = Tokenizer::make("bytes");
  CHECK(tokenizer->vocab_size() == 256);
  std::string text(256, '\0');
  std::iota(text.begin(), text.end(), static_cast<char>(0));
  std::vector<std::int32_t> expected(256);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(encoded(*tokenizer, text) == expected);
  CHECK(tokenizer->decode(expected) == text);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{256}), ConfigError);
}

TEST_CASE("a trained SentencePiece model gives every text back", "[data][tokenizer]") {
  const ScratchFolder folder;
  const std::string text = sample_text();
  const auto tokenizer = train_on(folder, text, 350);
  CHECK(tokenizer->vocab_size() == 350);
  const auto ids = encoded(*tokenizer, text);
  CHECK(tokenizer->decode(ids) == text);
  CHECK(ids.size() < text.size() / 2);  // it has learnt something
  // Text that it has never seen: other scripts, runs of spaces and line ends, a leading space,
  // controls.
  for (const std::string strange :
       {"Ж漢字🙂 é\n\n\n   x\t\ty  \r\n", " leading", "\n", "\x01\x7f"}) {
    CHECK(tokenizer->decode(encoded(*tokenizer, strange)) == strange);
  }
}

TEST_CASE("a text cut where the tokenizer says so has the same ids", "[data][tokenizer]") {
  const ScratchFolder folder;
  const std::string text = sample_text();
  const auto tokenizer = train_on(folder, text, 350);
  const auto whole = encoded(*tokenizer, text);
  std::vector<std::int32_t> pieces;
  std::string_view left = text;
  while (!left.empty()) {
    std::string_view piece = left.substr(0, 1000);
    piece = piece.substr(0, tokenizer->length_to_cut(piece));
    tokenizer->encode(piece, pieces);
    left.remove_prefix(piece.size());
  }
  CHECK(pieces == whole);
}

TEST_CASE("a text without line ends is cut between characters", "[data][tokenizer]") {
  const ScratchFolder folder;
  const auto tokenizer = train_on(folder, sample_text(), 350);
  CHECK(tokenizer->length_to_cut("one\ntwo") == 4);
  CHECK(tokenizer->length_to_cut("abc") == 2);  // "c" may be followed by a combining mark's bytes
  CHECK(tokenizer->length_to_cut("ab\xE2\x82") == 2);                // the first two bytes of €
  CHECK(tokenizer->length_to_cut("\x80\x80\x80\x80\x80\x80") == 6);  // not UTF-8
  CHECK(tokenizer->length_to_cut("x") == 1);
}

TEST_CASE("training samples a large input and needs only that", "[data][tokenizer]") {
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text += sample_text();  // about 40 blocks of 64 KiB; which ones depends on the path, too
  }
  test::write_file(folder / "text", text);
  const InputFile file{.path = folder / "text", .bytes = static_cast<std::int64_t>(text.size())};
  const SentencePieceTraining training{
      .vocab_size = 350, .seed = 5, .sample_bytes = static_cast<std::int64_t>(text.size()) / 2};
  const auto never = [] { return false; };
  const std::string model = train_sentencepiece({&file}, training, never);
  CHECK(train_sentencepiece({&file}, training, never) == model);
  const auto tokenizer = make_sentencepiece_tokenizer(model);
  CHECK(tokenizer->decode(encoded(*tokenizer, sample_text())) == sample_text());
}

TEST_CASE("impossible tokenizers are refused", "[data][tokenizer]") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(Tokenizer::make("byte"),
                    Catch::Contains("expected bytes, or an existing file"));
  CHECK_THROWS_WITH(Tokenizer::make("sentencepiece:" + (folder / "absent")),
                    Catch::Contains(folder / "absent"));
  test::write_file(folder / "text", "not a model");
  CHECK_THROWS_WITH(Tokenizer::make("sentencepiece:" + (folder / "text")),
                    Catch::Contains("not a SentencePiece model"));
  CHECK_THROWS_AS(train_on(folder, "short", 259), ConfigError);
  CHECK_THROWS_AS(train_on(folder, "far too little text", 8000), ConfigError);
}

}  // namespace
}  // namespace dstrain
