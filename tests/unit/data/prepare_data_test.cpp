#include "engine/data/prepare_data.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "engine/config/config_error.h"
#include "engine/data/token_dataset.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/data/scratch_folder.h"
#include "tests/unit/data/token_documents.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using test::documents_of;
using test::ScratchFolder;
using test::write_file;

PrepareSummary prepare(const PrepareOptions& options) {
  const auto summary = prepare_data(options, {});
  REQUIRE(summary.has_value());
  return *summary;
}

/// 200 different files in nested folders, 60 to 460 bytes.
std::map<std::string, std::string> write_tree(const std::string& root) {
  std::map<std::string, std::string> by_path;
  for (int i = 0; i < 200; ++i) {
    const std::string path = root + "/d" + std::to_string(i % 7) + "/e" + std::to_string(i % 3) +
                             "/" + std::to_string(i) + (i % 2 == 0 ? ".h" : ".txt");
    by_path[path] =
        std::string(static_cast<std::size_t>(50 + 2 * i), static_cast<char>('a' + i % 26)) +
        std::to_string(i) + "\n";
    write_file(path, by_path[path]);
  }
  return by_path;
}

TEST_CASE("every file is one document of exactly one split", "[data][prepare]") {
  const ScratchFolder folder;
  const auto tree = write_tree(folder / "in");
  const PrepareSummary summary =
      prepare({.input = {folder / "in"}, .output = folder / "out", .validation = 0.2});
  const auto train = documents_of(folder / "out/train");
  const auto validation = documents_of(folder / "out/validation");
  std::multiset<std::string> found(train.begin(), train.end());
  found.insert(validation.begin(), validation.end());
  std::multiset<std::string> expected;
  std::int64_t bytes = 0;
  for (const auto& [path, text] : tree) {
    expected.insert(text);
    bytes += static_cast<std::int64_t>(text.size());
  }
  CHECK(found == expected);  // the texts differ, so the splits share none
  CHECK(summary.files_found == 200);
  CHECK(summary.vocab_size == 256);
  CHECK(summary.train.documents == static_cast<std::int64_t>(train.size()));
  CHECK(summary.train.tokens + summary.validation->tokens == bytes);
  const double share = static_cast<double>(summary.validation->tokens) / static_cast<double>(bytes);
  CHECK(share <= 0.2);
  CHECK(share > 0.19);
  CHECK(TokenFile::open(summary.train.prefix, 256)->num_tokens() == summary.train.tokens);
  const auto json = nlohmann::json::parse(test::read_file(folder / "out/dataset.json"));
  CHECK(json["train"]["tokens"] == summary.train.tokens);
  CHECK(json["validation"]["prefix"] == (folder / "out/validation"));
}

TEST_CASE("the split depends on the seed and the names, not on place or time", "[data][prepare]") {
  const ScratchFolder folder;
  write_tree(folder / "in");
  fs::create_directory(folder / "elsewhere");
  fs::copy(folder / "in", folder / "elsewhere/deeper", fs::copy_options::recursive);
  const auto validation_of = [&](const std::string& input, std::uint64_t seed, int run) {
    const std::string output = folder / ("out" + std::to_string(run));
    prepare({.input = {input}, .output = output, .validation = 0.1, .seed = seed});
    return documents_of(output + "/validation");
  };
  const auto first = validation_of(folder / "in", 1, 0);
  CHECK(validation_of(folder / "in", 1, 1) == first);
  CHECK(validation_of(folder / "in/", 1, 2) == first);
  CHECK(validation_of(folder / "elsewhere/deeper", 1, 3) == first);
  CHECK(validation_of(folder / "in", 2, 4) != first);
}

TEST_CASE("what is not text is left out and counted", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.txt", "first\n");
  write_file(folder / "in/b.txt", "second\n");
  write_file(folder / "in/same.txt", "first\n");
  write_file(folder / "in/empty.txt", "");
  write_file(folder / "in/small.o", std::string("\x7f"
                                                "ELF\0\1",
                                                6));
  // A NUL so late that the text before it is in the writer already.
  write_file(folder / "in/late.dat", std::string(std::size_t{9} << 20, 'x') + '\0');
  write_file(folder / "in/.git/config", "hidden");
  write_file(folder / "in/.hidden", "hidden");
  fs::create_directory_symlink("..", folder / "in/loop");
  fs::create_symlink("round", folder / "in/round");
  fs::create_symlink("absent", folder / "in/dangling");
  fs::create_symlink("b.txt", folder / "in/link.txt");
  REQUIRE(::mkfifo((folder / "in/pipe").c_str(), 0600) == 0);
  const PrepareSummary summary =
      prepare({.input = {folder / "in"}, .output = folder / "out", .validation = 0.0});
  CHECK(documents_of(folder / "out/train") == std::vector<std::string>{"first\n", "second\n"});
  CHECK(summary.duplicates == 2);
  CHECK(summary.empty == 1);
  CHECK(summary.binary == 2);
  CHECK(summary.hidden == 2);
  CHECK(summary.folder_links == 1);
  CHECK(summary.special == 1);
  CHECK(summary.unreadable.size() == 2);
  CHECK_FALSE(summary.validation.has_value());
  CHECK_FALSE(fs::exists(folder / "out/validation.bin"));
}

TEST_CASE("duplicates are kept on request, and large ones are known too", "[data][prepare]") {
  const ScratchFolder folder;
  const std::string large(std::size_t{5} << 20, 'y');
  write_file(folder / "in/1", large + "a");
  write_file(folder / "in/2", large + "b");  // same size, other content
  write_file(folder / "in/3", large + "a");
  PrepareOptions options{.input = {folder / "in"}, .output = folder / "out", .validation = 0.0};
  CHECK(prepare(options).train.documents == 2);
  CHECK(documents_of(folder / "out/train") == std::vector<std::string>{large + "a", large + "b"});
  options.output = folder / "all";
  options.deduplicate = false;
  CHECK(prepare(options).train.documents == 3);
}

TEST_CASE("extensions choose files, a file that is named is always taken", "[data][prepare]") {
  const ScratchFolder folder;
  const auto tree = write_tree(folder / "in");
  write_file(folder / "named.md", "named");
  const PrepareSummary summary = prepare({.input = {folder / "in", folder / "named.md"},
                                          .output = folder / "out",
                                          .validation = 0.0,
                                          .extensions = {".h"}});
  CHECK(summary.train.documents == 101);
  CHECK(documents_of(folder / "out/train").back() == "named");
}

TEST_CASE("validation files can be named", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "train.txt", "training text");
  write_file(folder / "valid.txt", "validation text");
  write_file(folder / "leak/copy.txt", "training text");
  prepare({.input = {folder / "train.txt"},
           .validation_input = {folder / "valid.txt", folder / "leak"},
           .output = folder / "out"});
  CHECK(documents_of(folder / "out/train") == std::vector<std::string>{"training text"});
  CHECK(documents_of(folder / "out/validation") == std::vector<std::string>{"validation text"});
}

TEST_CASE("an end-of-document id goes behind every document and widens the ids",
          "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a", "xy");
  write_file(folder / "in/b", "z");
  const PrepareSummary summary = prepare(
      {.input = {folder / "in"}, .output = folder / "out", .append_eod = 256, .validation = 0.0});
  CHECK(summary.vocab_size == 257);
  CHECK(test::read_file(folder / "out/train.bin") ==
        test::tokens_as_bytes({'x', 'y', 256, 'z', 256}, 2));
  CHECK(test::read_file(folder / "out/train.idx") == test::megatron_index_bytes(8, 2, {3, 2}));
}

TEST_CASE("an earlier output is replaced on request only, and wholly", "[data][prepare]") {
  const ScratchFolder folder;
  const auto tree = write_tree(folder / "in");
  PrepareOptions options{.input = {folder / "in"}, .output = folder / "in/out", .validation = 0.3};
  prepare(options);
  CHECK_THROWS_WITH(prepare_data(options, {}), Catch::Contains("--overwrite"));
  options.overwrite = true;
  options.validation = 0.0;
  // The output lies inside the input, and is not taken for input.
  CHECK(prepare(options).train.documents == 200);
  CHECK_FALSE(fs::exists(folder / "in/out/validation.bin"));
  CHECK_FALSE(fs::exists(folder / "in/out/validation.idx"));
}

TEST_CASE("the same bytes come out of any number of threads", "[data][prepare]") {
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 40000; ++i) {
    text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
  }
  write_file(folder / "in/long", text);
  write_tree(folder / "in/more");
  PrepareOptions options{.input = {folder / "in"},
                         .output = folder / "one",
                         .train_sentencepiece = 300,
                         .validation = 0.0,
                         .threads = 1};
  const PrepareSummary summary = prepare(options);
  CHECK(summary.vocab_size == 300);
  options.output = folder / "three";
  options.train_sentencepiece.reset();
  options.tokenizer = summary.tokenizer;
  options.threads = 3;
  prepare(options);
  for (const char* name : {"train.bin", "train.idx"}) {
    CHECK(test::read_file(folder / ("one/" + std::string(name))) ==
          test::read_file(folder / ("three/" + std::string(name))));
  }
  // Decoded, the tokens are the text: the long file comes first.
  const auto file = TokenFile::open(summary.train.prefix, 300);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file->num_tokens()));
  file->read(0, ids);
  CHECK(Tokenizer::make(summary.tokenizer)->decode(ids).starts_with(text));
}

TEST_CASE("impossible requests are refused in a sentence", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a", "text");
  write_file(folder / "bin/a", std::string("\0\1", 2));
  const std::string out = folder / "out";
  const auto refusal = [&](const PrepareOptions& options) -> std::string {
    try {
      (void)prepare_data(options, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({.input = {folder / "absent"}, .output = out}), Contains(folder / "absent"));
  CHECK_THAT(refusal({.input = {"/dev/null"}, .output = out}), Contains("pipe, socket or device"));
  CHECK_THAT(refusal({.input = {folder / "bin"}, .output = out}),
             Contains("no text for training in 1 files") && Contains("binary: 1"));
  CHECK_THAT(refusal({.input = {folder / "in"}, .output = out, .validation = 1.0}),
             Contains("--validation 1"));
  CHECK_THAT(refusal({.input = {folder / "in"}, .output = out, .append_eod = -1}),
             Contains("--append-eod -1"));
  CHECK_THAT(refusal({.input = {folder / "in"}, .output = out, .tokenizer = "bpe"}),
             Contains("tokenizer \"bpe\""));
  CHECK_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace dstrain
