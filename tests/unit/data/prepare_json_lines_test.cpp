// JSON lines and packed files as prepare_data takes them: which lines become which documents, and
// what is said of those that do not.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/data/prepare_data.h"
#include "tests/unit/data/packed.h"
#include "tests/unit/data/scratch_folder.h"
#include "tests/unit/data/token_documents.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::documents_of;
using test::ScratchFolder;
using test::write_file;
using OnBadLine = PrepareOptions::OnBadLine;
using Documents = std::vector<std::string>;

PrepareSummary prepare(const PrepareOptions& options) {
  const auto summary = prepare_data(options, {});
  REQUIRE(summary.has_value());
  return *summary;
}

std::string refusal(const PrepareOptions& options) {
  try {
    (void)prepare_data(options, {});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string line_of(const std::string& text) {
  return nlohmann::json{{"id", 7}, {"text", text}, {"tail", {1, 2}}}.dump() + "\n";
}

TEST_CASE("every line of JSON lines is a document, packed or not, beside files of text",
          "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", line_of("a1") + "\n  \r\n" + line_of("a2\nsecond line"));
  write_file(folder / "in/b.ndjson.gz", test::gzip(line_of("b1")) + test::gzip(line_of("b2")));
  write_file(folder / "in/c.json.zst", test::zstd(line_of("c1") + line_of("c2")));
  write_file(folder / "in/d.jsonl.xz", test::xz(R"({"text": "no line's end"})"));
  write_file(folder / "in/e", line_of("e1, of a file without a name for it"));
  write_file(folder / "in/f.txt.gz", test::gzip("f\ntext"));
  write_file(folder / "in/g.txt", "{\"an object\": \"without that field\"}\n");
  write_file(folder / "in/h.gz", "of another name than content\n");
  const PrepareSummary summary =
      prepare({.input = {folder / "in"}, .output = folder / "out", .validation = 0.0});
  CHECK(documents_of(folder / "out/train") ==
        Documents{"a1", "a2\nsecond line", "b1", "b2", "c1", "c2", "no line's end",
                  "e1, of a file without a name for it", "f\ntext",
                  "{\"an object\": \"without that field\"}\n", "of another name than content\n"});
  CHECK(summary.files_found == 8);
  CHECK(summary.bad_lines == 0);
  CHECK(summary.train.text_bytes == summary.train.tokens);
}

TEST_CASE("a text is the same tokens in a file, packed, and in a JSON line", "[data][prepare]") {
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 52000; ++i) {
    text += "line " + std::to_string(i * 7919 % 1000) + " of the text" + (i % 3 == 0 ? " " : "\n");
  }
  write_file(folder / "plain", text);
  write_file(folder / "packed", test::gzip(text));
  write_file(folder / "a.jsonl", line_of(text));
  write_file(folder / "field.jsonl", R"({"data": {"text": )" + nlohmann::json(text).dump() + "}}");
  // Large enough for several blocks, and pieces within them.
  REQUIRE(text.size() > (std::size_t{1} << 20));
  const PrepareSummary made = prepare({.input = {folder / "plain"},
                                       .output = folder / "made",
                                       .train_sentencepiece = 300,
                                       .append_eod = 2,
                                       .validation = 0.0});
  for (const std::string input : {"plain", "packed", "a.jsonl", "field.jsonl"}) {
    for (const int threads : {1, 3}) {
      INFO(input << " " << threads);
      PrepareOptions options{.input = {folder / input},
                             .output = folder / "out",
                             .tokenizer = made.tokenizer,
                             .append_eod = 2,
                             .validation = 0.0,
                             .overwrite = true,
                             .threads = threads};
      if (input == "field.jsonl") options.field = "data.text";
      CHECK(prepare(options).train.content == made.train.content);
    }
  }
}

TEST_CASE("a model can be trained on JSON lines, packed or not", "[data][prepare]") {
  const ScratchFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += line_of("some words " + std::to_string(i * 7919 % 1000) + " for a vocabulary\n");
  }
  write_file(folder / "a.jsonl", lines);
  write_file(folder / "b.jsonl.zst", test::zstd(lines));
  for (const std::string input : {"a.jsonl", "b.jsonl.zst"}) {
    const PrepareSummary made = prepare({.input = {folder / input},
                                         .output = folder / ("out-" + input),
                                         .train_sentencepiece = 320,
                                         .validation = 0.0});
    // The tokenizer is trained on the text alone: pieces of the JSON around it would be wasted.
    CHECK(made.train.tokens < made.train.text_bytes / 3);
  }
}

TEST_CASE("a bad line stops with file, line and reason, or is skipped and counted",
          "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl",
             line_of("a1") + "\n{broken\n" + line_of("a2") + "{\"id\": 3}\n{\"text\": \"\xff\"}\n");
  write_file(folder / "in/b.jsonl.gz", test::gzip("{\"text\": []}\n" + line_of("b2")));
  PrepareOptions options{.input = {folder / "in"}, .output = folder / "out", .validation = 0.0};
  CHECK_THAT(refusal(options), Contains((folder / "in/a.jsonl") + ":3: is not JSON: byte 2") &&
                                   Contains("--on-bad-line skip"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  options.on_bad_line = OnBadLine::kSkip;
  const PrepareSummary summary = prepare(options);
  CHECK(documents_of(folder / "out/train") == Documents{"a1", "a2", "b2"});
  CHECK(summary.bad_lines == 4);
  REQUIRE(summary.bad_lines_named.size() == 4);
  const std::vector<std::string> places = {
      "a.jsonl:3: ", "a.jsonl:5: ", "a.jsonl:6: ", "b.jsonl.gz:1: "};
  for (std::size_t i = 0; i < places.size(); ++i) {
    CHECK_THAT(summary.bad_lines_named[i], Contains("/in/" + places[i]));
  }
  const auto json = nlohmann::json::parse(test::read_file(folder / "out/dataset.json"));
  CHECK(json["skipped"]["bad_lines"] == 4);
  CHECK(json["bad_lines"].size() == 4);
}

TEST_CASE("a text that the tokenizer refuses is named by its file and line", "[data][prepare]") {
  const ScratchFolder folder;
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", false}};
  const nlohmann::json explodes = {{"type", "Split"},
                                   {"pattern", {{"Regex", "(a|aa|a?a)+$"}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}};
  write_file(
      folder / "tokenizer.json",
      nlohmann::json{
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {explodes, byte_level}}}},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", nlohmann::json::array()}}}}
          .dump());
  const std::string text = std::string(4000, 'a') + "b";
  write_file(folder / "in/a.jsonl", line_of("ab") + line_of(text) + line_of("ba"));
  PrepareOptions options{.input = {folder / "in"},
                         .output = folder / "out",
                         .tokenizer = folder / "tokenizer.json",
                         .validation = 0.0};
  const auto says = [](const std::string& where) {
    return Contains(where + " the tokenizer's pattern \"(a|aa|a?a)+$\" takes too many steps");
  };
  CHECK_THAT(refusal(options),
             says((folder / "in/a.jsonl") + ":2:") && Contains("--on-bad-line skip"));
  options.on_bad_line = OnBadLine::kSkip;
  const PrepareSummary summary = prepare(options);
  CHECK(summary.train.documents == 2);
  CHECK(summary.train.tokens == 4);
  REQUIRE(summary.bad_lines_named.size() == 1);
  CHECK_THAT(summary.bad_lines_named[0], says("a.jsonl:2:"));
  write_file(folder / "text/b.txt", text);
  options.input = {folder / "text"};
  options.overwrite = true;
  CHECK_THAT(refusal(options), says((folder / "text/b.txt") + ":"));
}

TEST_CASE("a line longer than the bound is reported and never held", "[data][prepare]") {
  const ScratchFolder folder;
  const std::string long_line = line_of(std::string(5 << 20, 'x'));
  write_file(folder / "in/a.jsonl",
             line_of("a1") + long_line + line_of(std::string(200, 'y')) + line_of("a2"));
  PrepareOptions options{.input = {folder / "in"},
                         .output = folder / "out",
                         .validation = 0.0,
                         .on_bad_line = OnBadLine::kSkip,
                         .longest_line = 100};
  const PrepareSummary summary = prepare(options);
  CHECK(documents_of(folder / "out/train") == Documents{"a1", "a2"});
  REQUIRE(summary.bad_lines_named.size() == 2);
  CHECK_THAT(summary.bad_lines_named[0], Contains("a.jsonl:2: has ") && Contains("--longest-line"));
  CHECK_THAT(summary.bad_lines_named[1], Contains("a.jsonl:3: has ") && Contains("--longest-line"));
  options.overwrite = true;
  options.longest_line = std::int64_t{8} << 20;
  CHECK(prepare(options).train.documents == 4);
  options.longest_line = 0;
  CHECK_THAT(refusal(options), Contains("--longest-line 0"));
}

TEST_CASE("documents that repeat one, are empty or hold NUL are left out, whatever they lie in",
          "[data][prepare]") {
  const ScratchFolder folder;
  const std::string large(3 << 20, 'z');
  write_file(folder / "in/a.jsonl", line_of("same") + line_of("") + line_of("other") +
                                        line_of("same") + "{\"text\": \"nul \\u0000 byte\"}\n" +
                                        line_of(large));
  write_file(folder / "in/b.txt", "same");
  write_file(folder / "in/c.txt.gz", test::gzip("same"));
  write_file(folder / "in/d.txt.xz", test::xz(""));
  write_file(folder / "in/e.txt.zst", test::zstd(large));
  write_file(folder / "in/f.txt.zst", test::zstd(large + '\0'));
  PrepareOptions options{.input = {folder / "in"}, .output = folder / "out", .validation = 0.0};
  const PrepareSummary summary = prepare(options);
  CHECK(documents_of(folder / "out/train") == Documents{"same", "other", large});
  CHECK(summary.duplicates == 4);
  CHECK(summary.empty == 2);
  CHECK(summary.binary == 2);
  options.overwrite = true;
  options.deduplicate = false;
  CHECK(prepare(options).train.documents == 7);
}

TEST_CASE("of JSON lines single documents go to validation, by their text", "[data][prepare]") {
  const ScratchFolder folder;
  std::string first;
  std::string second;
  for (int i = 0; i < 4000; ++i) {
    (i % 2 == 0 ? first : second) += line_of("document " + std::to_string(i));
  }
  write_file(folder / "one/a.jsonl", first + second);
  write_file(folder / "two/x.jsonl.gz", test::gzip(second));
  write_file(folder / "two/y.jsonl", first + second);
  const auto validation_of = [&](const std::string& input, std::uint64_t seed) {
    prepare({.input = {folder / input},
             .output = folder / "out",
             .validation = 0.1,
             .seed = seed,
             .overwrite = true});
    Documents documents = documents_of(folder / "out/validation");
    std::sort(documents.begin(), documents.end());
    return documents;
  };
  const Documents chosen = validation_of("one", 1);
  // 400 expected; five standard deviations are 95.
  CHECK(chosen.size() > 305);
  CHECK(chosen.size() < 495);
  CHECK(validation_of("two", 1) == chosen);
  CHECK(validation_of("one", 2) != chosen);
  prepare({.input = {folder / "one"},
           .validation_input = {folder / "two/x.jsonl.gz"},
           .output = folder / "out",
           .overwrite = true});
  // All of --input is for training, and what repeats it is left out.
  CHECK(documents_of(folder / "out/train").size() == 4000);
  CHECK_FALSE(std::filesystem::exists(folder / "out/validation.bin"));
}

TEST_CASE("JSON that cannot be meant is refused in a sentence", "[data][prepare]") {
  const ScratchFolder folder;
  const auto refusal_of = [&](const std::string& name, const std::string& content,
                              const std::optional<std::string>& field = {}) {
    const ScratchFolder own;
    write_file(own / name, content);
    return refusal({.input = {own.path()}, .output = folder / "out", .field = field});
  };
  CHECK_THAT(refusal_of("a.json", "[\n{\"text\": \"a\"}\n]"),
             Contains("JSON, but not JSON lines") && Contains("jq -c '.[]'") &&
                 Contains("--as-text json"));
  CHECK_THAT(refusal_of("a.json", "{\"one\": \"object\"}"), Contains("a.json:1: has no field"));
  CHECK_THAT(refusal_of("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"),
             Contains("a.jsonl:1: holds a conversation") && Contains("--chat"));
  CHECK_THAT(refusal_of("shard", R"({"messages": [{"role": "user", "content": "a"}]})"),
             Contains("shard:1: holds a conversation"));
  // Where a field was named, an object without it is a mistake, whatever the file's name.
  CHECK_THAT(refusal_of("shard", "{\"text\": \"a\"}\n", "body"), Contains("shard:1: has no field"));
  CHECK_THAT(refusal_of("a.txt", "text", "body"),
             Contains("--field body: there are no JSON lines among the 1 file"));
  CHECK_THAT(refusal_of("a.jsonl", "", "a..b"), Contains("--field a..b"));
  CHECK_THAT(refusal_of("a.jsonl.gz", test::gzip(line_of("a")).substr(0, 30)),
             Contains("a.jsonl.gz is cut short"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace dstrain
