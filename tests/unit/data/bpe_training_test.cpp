// A tokenizer that prepare-data makes of its own text: the merges of the `tokenizers` package
// (scripts/make_tokenizer_golden.py), the ids that come of them, and every refusal.
#include "engine/data/bpe_training.h"

#include <filesystem>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"
#include "engine/data/prepare_data.h"
#include "engine/tokenizer/tokenizer_source.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/data/packed.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using test::ScratchFolder;
using test::write_file;

PrepareOptions options_for(const ScratchFolder& folder, const BpeTraining& training) {
  return {.input = {folder / "in"},
          .output = folder / "out",
          .train_bpe = training,
          .validation = 0.0,
          .threads = 2};
}

std::string refusal(const PrepareOptions& options) {
  try {
    static_cast<void>(prepare_data(options, {}));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

json made_by(const PrepareOptions& options) {
  REQUIRE(prepare_data(options, {}));
  return json::parse(test::read_file(options.output + "/tokenizer.json"));
}

TEST_CASE("a tokenizer learns the merges that the tokenizers package learns", "[data][train_bpe]") {
  const json golden = json::parse(
      read_regular_file(std::string(DSTRAIN_UNPACKED) + "/trained_bpe/cases.json").text);
  const ScratchFolder folder;
  write_file(folder / "in/text.gz", test::gzip(golden["text"].get<std::string>()));
  REQUIRE(golden["cases"].size() == 5);
  for (const json& expected : golden["cases"]) {
    CAPTURE(expected["split"]);
    PrepareOptions options = options_for(folder, {.vocab_size = golden["vocab_size"],
                                                  .split = expected["split"],
                                                  .document_end = golden["end"]});
    options.overwrite = true;
    const testing::CapturedLog log;
    const json model = made_by(options)["model"];
    CHECK(model["merges"] == expected["merges"]);
    CHECK(model["vocab"] == expected["vocab"]);
    CHECK(log.lines_with("since no other pair of tokens occurs 2 times") ==
          (expected["vocab"].size() < golden["vocab_size"] ? 1 : 0));
  }
}

TEST_CASE("data of a tokenizer made for it end with its token and decode to the text",
          "[data][train_bpe]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", R"({"text": "the first, and the second"})"
                                    "\n"
                                    R"({"text": "the third \u00e9"})"
                                    "\n");
  write_file(folder / "in/b.txt", "the last\n");
  const PrepareOptions options = options_for(folder, {.vocab_size = 262});
  const auto summary = prepare_data(options, {});
  REQUIRE(summary);
  CHECK(summary->vocab_size == 262);
  CHECK(summary->append_eod == 0);
  CHECK(summary->identity.document_end == 0);
  CHECK(summary->identity.file == "tokenizer.json");
  CHECK(json::parse(test::read_file(folder / "out/tokenizer_config.json"))["eos_token"] ==
        "<|endoftext|>");
  const auto tokenizer = Tokenizer::make(folder / "out");
  CHECK(tokenizer->end_of_text() == 0);
  std::vector<std::int32_t> expected;
  for (const char* text : {"the first, and the second", "the third \u00e9", "the last\n"}) {
    tokenizer->encode(text, expected);
    expected.push_back(0);
  }
  const std::string bin = test::read_file(folder / "out/train.bin");
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i + 1 < bin.size(); i += 2) {
    ids.push_back(static_cast<unsigned char>(bin[i]) | static_cast<unsigned char>(bin[i + 1]) << 8);
  }
  CHECK(ids == expected);

  PrepareOptions other = options;
  other.output = folder / "other";
  other.train_bpe = BpeTraining{.vocab_size = 261, .document_end = ""};  // the same merges
  const auto without = prepare_data(other, {});
  REQUIRE(without);
  CHECK_FALSE(without->append_eod);
  CHECK(Tokenizer::make(folder / "other")->vocab_size() == 261);
  CHECK_THAT(refusal(options), Contains("already exists; --overwrite replaces it"));
}

TEST_CASE("of a text with too many distinct pieces a share is counted, and the log says so",
          "[data][train_bpe]") {
  const ScratchFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += json{{"text", "common words and w" + std::to_string(i * 7919 % 3000)}}.dump() + "\n";
  }
  write_file(folder / "in/a.jsonl", lines);
  PrepareOptions options = options_for(folder, {.vocab_size = 300});
  options.train_bpe->split = "[^ ]+ ?";
  const InputFile file{.path = folder / "in/a.jsonl",
                       .bytes = static_cast<std::int64_t>(lines.size()),
                       .is_json_lines = true};
  const auto train = [&](int threads, std::int64_t pieces) {
    options.threads = threads;
    return train_bpe({file}, options, {}, {.pieces = pieces, .bytes = 1 << 20});
  };
  const testing::CapturedLog log;
  const auto whole = train(1, 4000);
  CHECK(log.lines_with("more distinct pieces") == 0);
  CHECK(train(3, 4000) == whole);
  const auto share = train(1, 1000);
  CHECK(log.lines_with("more distinct pieces than are held at once (1,000") == 2);
  CHECK(log.lines_with("learned from 1/4 of it") == 1);
  CHECK(share != whole);
  CHECK(train(3, 1000) == share);
}

TEST_CASE("a tokenizer that cannot be made is a sentence", "[data][train_bpe]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.txt", "some text\n");
  const auto refused = [&](const BpeTraining& training) {
    const std::string said = refusal(options_for(folder, training));
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
    return said;
  };
  CHECK_THAT(refused({.vocab_size = 257}),
             Contains("--vocab-size 257: the 256 bytes and the end token are always in the "
                      "vocabulary; expected 258 to"));
  CHECK_THAT(refused({.vocab_size = 256, .document_end = ""}), Contains("expected 257 to"));
  CHECK_THAT(refused({.vocab_size = 1 << 30}), Contains("expected 258 to 16777216"));
  CHECK_THAT(refused({.vocab_size = 300, .split = "gpt5"}),
             Contains("--split-pattern \"gpt5\": expected gpt2, gpt4, gpt4o, qwen2, or a regular"));
  CHECK_THAT(refused({.vocab_size = 300, .split = "(a"}),
             Contains("--split-pattern: \"(a\" is not a regular expression"));
  CHECK_THAT(refused({.vocab_size = 300, .document_end = "\u00e9"}),
             Contains("--end-token \"\u00e9\": expected a text of two characters or more"));
  write_file(folder / "in/a.txt", "");
  CHECK_THAT(refused({.vocab_size = 300}),
             Contains("--train-tokenizer: there is no text to learn from in 1 file"));
  write_file(folder / "in/a.jsonl", "{\"text\": \"one\"}\n{\"text\": 3}\n");
  CHECK_THAT(refused({.vocab_size = 300}),
             Contains("a.jsonl:2: field \"text\" is a number") && Contains("--on-bad-line skip"));
}

}  // namespace
}  // namespace dstrain
