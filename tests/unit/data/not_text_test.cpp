// Input that holds text in another form is refused by name, and the ways on that the refusal names
// lead on.
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/config/dataset_description.h"
#include "engine/data/prepare_data.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/data/packed.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

std::string refusal(const PrepareOptions& options) {
  try {
    (void)prepare_data(options, {});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(accepted)";
}

PrepareSummary prepare(const PrepareOptions& options) {
  const auto summary = prepare_data(options, {});
  REQUIRE(summary.has_value());
  return *summary;
}

TEST_CASE("what is no plain text is refused by its first bytes, whatever it is called",
          "[data][prepare]") {
  const ScratchFolder folder;
  const std::string rest = " and more of it, long enough for any header";
  const std::string tar = std::string(257, 'n') + "ustar" + rest;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"BZh91AY&SY", "bzip2"},
      {"\x04\x22\x4d\x18", "lz4"},
      {"PK\x03\x04", "zip"},
      {"PAR1", "Parquet"},
      {"ARROW1", "Arrow"},
      {"%PDF-1.7\n", "PDF"},
      {"7z\xbc\xaf\x27\x1c", "7-Zip"},
      {tar, "tar"},
  };
  for (const auto& [bytes, what] : cases) {
    INFO(what);
    write_file(folder / "in/shard", bytes + rest);
    for (const std::string& input : {folder / "in", folder / "in/shard"}) {
      CHECK_THAT(refusal({.input = {input}, .output = folder / "out"}),
                 Contains(folder / "in/shard") && Contains(what) && Contains("--exclude 'shard'") &&
                     !Contains("--as-text"));
    }
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("what is packed twice, or packed and no text, is refused too", "[data][prepare]") {
  const std::string tar = std::string(257, 'n') + "ustar and the rest of it";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {test::gzip(test::gzip("text")), "gzip"},
      {test::xz(test::zstd("text")), "zstd"},
      {test::zstd("PAR1 and so on"), "Parquet"},
      {test::gzip(tar), "tar"}};
  for (const auto& [bytes, what] : cases) {
    INFO(what);
    const ScratchFolder folder;
    write_file(folder / "in/shard", bytes);
    CHECK_THAT(refusal({.input = {folder / "in"}, .output = folder / "out"}),
               Contains(folder / "in/shard") && Contains(what));
  }
}

TEST_CASE("what is no plain text is refused by its name, where its bytes look like text",
          "[data][prepare]") {
  for (const std::string name :
       {"a.bz2", "a.zip", "a.parquet", "a.arrow", "a.pdf", "a.tgz", "a.parquet.gz", "a.ipynb"}) {
    INFO(name);
    const ScratchFolder folder;
    write_file(folder / ("in/" + name), "{\"text\": \"characters\"}\n");
    CHECK_THAT(refusal({.input = {folder / "in"}, .output = folder / "out"}),
               Contains(name) && Contains("--exclude '*" + name.substr(name.find('.')) + "'"));
  }
}

TEST_CASE("Parquet is refused with what makes JSON lines of it", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.parquet", "PAR1");
  CHECK_THAT(refusal({.input = {folder / "in"}, .output = folder / "out"}),
             Contains("turn it into JSON lines first: python3 -c \"import sys, pandas;"));
  write_file(folder / "in/b.parquet", "PAR1");
  CHECK_THAT(refusal({.input = {folder / "in"}, .output = folder / "out"}),
             Contains("2 files") && Contains("python3 -c"));
}

TEST_CASE("a folder's files that are neither text nor JSON lines are refused together",
          "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/good.txt", "text\n");
  for (int i = 0; i < 4; ++i) {
    write_file(folder / ("in/part-" + std::to_string(i) + ".json"), "{\n\"text\": \"a\"}\n");
  }
  write_file(folder / "in/z.txt.bz2", "BZh91AY&SY packed");
  const PrepareOptions options{
      .input = {folder / "in"}, .output = folder / "out", .validation = 0.0};
  CHECK_THAT(refusal(options), Contains("5 files are neither text nor JSON lines") &&
                                   Contains(folder / "in/part-0.json") && Contains("and 2 more") &&
                                   Contains("--exclude '*.bz2,*.json'") &&
                                   Contains("--as-text json"));

  PrepareOptions without = options;
  without.exclude = {"*.bz2", "*.json"};
  const PrepareSummary left = prepare(without);
  CHECK(left.train.documents == 1);
  CHECK(left.excluded == 5);

  PrepareOptions as_text = options;
  as_text.as_text = {"json"};
  as_text.overwrite = true;
  as_text.deduplicate = false;
  CHECK_THAT(refusal(as_text), Contains("z.txt.bz2 is compressed with bzip2"));
  as_text.exclude = {"*.bz2"};
  CHECK(prepare(as_text).train.documents == 5);

  // Extensions that were asked for leave the rest alone, as ever.
  PrepareOptions chosen = options;
  chosen.extensions = {".txt"};
  chosen.overwrite = true;
  CHECK(prepare(chosen).train.documents == 1);
}

TEST_CASE("patterns leave out folders, paths and files that were named", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/keep.c", "keep\n");
  write_file(folder / "in/vendor/a.c", "vendor\n");
  write_file(folder / "in/docs/page.html", "page\n");
  write_file(folder / "in/docs/note.md", "note\n");
  write_file(folder / "named.log", "log\n");
  const PrepareSummary summary = prepare({.input = {folder / "in", folder / "named.log"},
                                          .output = folder / "out",
                                          .validation = 0.0,
                                          .exclude = {"vendor", "docs/*.html", "*.log"}});
  CHECK(summary.train.tokens == 10);  // keep.c and note.md
  CHECK(summary.excluded == 3);
}

TEST_CASE("programs and images are skipped in a folder and refused where they are named",
          "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.txt", "text\n");
  write_file(folder / "in/tool", std::string("\x7f"
                                             "ELF\2\1\1\0",
                                             8));
  CHECK(prepare({.input = {folder / "in"}, .output = folder / "out", .validation = 0.0}).binary ==
        1);
  CHECK_THAT(refusal({.input = {folder / "in/tool"}, .output = folder / "named"}),
             Contains("in/tool is a program"));
}

TEST_CASE("token files say which tokenizer they are of, and take its model along",
          "[data][prepare]") {
  const ScratchFolder folder;
  std::string text;
  for (int line = 0; line < 3000; ++line) {
    text += "some words " + std::to_string(line * 7919 % 1000) + " for a vocabulary\n";
  }
  write_file(folder / "in/a.txt", text);
  const PrepareOptions options{.input = {folder / "in"},
                               .output = folder / "made",
                               .train_sentencepiece = 300,
                               .validation = 0.0};
  const PrepareSummary made = prepare(options);
  PrepareOptions again = options;
  again.train_sentencepiece.reset();
  again.tokenizer = "sentencepiece:" + (folder / "made/tokenizer.model");
  again.output = folder / "again";
  prepare(again);
  PrepareOptions bytes = again;
  bytes.tokenizer = "bytes";
  bytes.append_eod = 256;
  bytes.output = folder / "bytes";
  prepare(bytes);

  const auto of_made = read_dataset_description(folder / "made");
  const auto of_again = description_of_prefix(folder / "again/train");
  const auto of_bytes = description_of_prefix(folder / "bytes/train.bin");
  REQUIRE((of_made && of_again && of_bytes));
  CHECK(of_made->identity == of_again->identity);
  CHECK(of_made->identity.kind == "sentencepiece");
  CHECK(of_made->identity.vocab_size == 300);
  CHECK(of_made->identity.hash == content_hash(test::read_file(folder / "made/tokenizer.model")));
  CHECK(test::read_file(folder / "again/tokenizer.model") ==
        test::read_file(folder / "made/tokenizer.model"));
  CHECK(of_bytes->identity ==
        TokenizerIdentity{.kind = "bytes", .hash = "", .vocab_size = 257, .document_end = 256});
  CHECK(is_same_tokenizer(of_made->identity, of_bytes->identity) == false);
  CHECK(is_same_tokenizer(of_made->identity, of_again->identity) == true);

  // The ids decide what "content" is, not how they came about.
  CHECK(of_made->content == of_again->content);
  CHECK(of_made->content != of_bytes->content);
  CHECK(made.train.content == of_made->content.at("train"));

  // Other files of the folder are not the ones described.
  CHECK_FALSE(description_of_prefix(folder / "made/other"));
  CHECK_FALSE(description_of_prefix(folder / "absent/train"));
}

TEST_CASE("an older description is completed from the tokenizer's file", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "data/tokenizer.model", "a model");
  write_file(folder / "data/dataset.json",
             R"({"tokenizer": "sentencepiece:/gone", "vocab_size": 32000, "append_eod": 2})");
  const auto old = read_dataset_description(folder / "data");
  REQUIRE(old);
  CHECK(old->identity == TokenizerIdentity{.kind = "sentencepiece",
                                           .hash = content_hash("a model"),
                                           .vocab_size = 32000,
                                           .file = "tokenizer.model",
                                           .document_end = 2});
  std::filesystem::remove(folder / "data/tokenizer.model");
  CHECK_FALSE(read_dataset_description(folder / "data")->knows_tokenizer());
  for (const char* text : {"", "[]", "{", R"({"tokenizer": 3})"}) {
    write_file(folder / "data/dataset.json", text);
    CHECK_FALSE(read_dataset_description(folder / "data"));
  }
}

TEST_CASE("content_hash is what xxh128sum prints", "[data]") {
  // printf 'a model' | xxh128sum
  CHECK(content_hash("a model") == "45469cb0582bcc1bcad719f88c931876");
}

}  // namespace
}  // namespace dstrain
