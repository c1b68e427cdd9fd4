// A prepare_data that is interrupted, by request or by SIGKILL, and called again makes the files
// that one without interruption makes, byte for byte.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/config/config_error.h"
#include "engine/data/prepare_data.h"
#include "tests/unit/data/packed.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

/// Files of every kind, with what is left out among them: about 9 MB in some 15 blocks.
void write_corpus(const std::string& root) {
  std::string lines;
  for (int i = 0; i < 12000; ++i) {
    lines +=
        i % 1000 == 999
            ? "{\"no\": \"text\"}\n"
            : nlohmann::json{{"text", "document " + std::to_string(i % 11000) +
                                          std::string(static_cast<std::size_t>(i * 37 % 300), 'a')}}
                      .dump() +
                  "\n";
  }
  std::string text;
  while (text.size() < (std::size_t{3} << 20) + 12345) {
    text += "word" + std::to_string(text.size()) + (text.size() % 5 == 0 ? "\n" : " ");
  }
  write_file(root + "/a.jsonl", lines);
  write_file(root + "/b.txt", text);
  write_file(root + "/c.txt.gz", test::gzip(text + "more"));
  write_file(root + "/d.jsonl.zst",
             test::zstd(lines.substr(0, lines.size() / 2) + "\n" + R"({"text": "the last"})"));
  write_file(root + "/e.txt.xz", test::xz(text));  // repeats b.txt
  write_file(root + "/f.txt", text + '\0');
  for (int i = 0; i < 50; ++i) {
    write_file(root + "/small/" + std::to_string(i), "small " + std::to_string(i % 40));
  }
}

PrepareOptions options_for(const std::string& input, const std::string& output) {
  return {.input = {input},
          .output = output,
          .append_eod = 300,
          .validation = 0.2,
          .on_bad_line = PrepareOptions::OnBadLine::kSkip,
          .threads = 2};
}

/// The files of the output but for dataset.json, which tells the time it took.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != "dataset.json") {
      files[entry.path().filename().string()] = test::read_file(entry.path().string());
    }
  }
  return files;
}

nlohmann::json description_of(const std::string& folder) {
  auto json = nlohmann::json::parse(test::read_file(folder + "/dataset.json"));
  json.erase("seconds");
  json["train"].erase("prefix");
  json["validation"].erase("prefix");
  return json;
}

void check_same_output(const std::string& folder, const std::string& reference) {
  const auto files = files_of(folder);
  const auto expected = files_of(reference);
  REQUIRE(expected.size() == 6);
  for (const auto& [name, content] : expected) {
    INFO(name);
    REQUIRE(files.contains(name));
    CHECK((files.at(name) == content));
  }
  CHECK(files.size() == expected.size());
  CHECK(description_of(folder) == description_of(reference));
}

/// Stops once so many bytes more than before are done.
bool finishes(const PrepareOptions& options, std::int64_t bytes) {
  bool is_enough = false;
  PrepareHooks hooks{.save_interval = std::chrono::milliseconds(0)};
  hooks.on_progress = [&](const PrepareProgress& progress) {
    is_enough = progress.bytes_done - progress.bytes_before > bytes;
  };
  hooks.stop_requested = [&] { return is_enough; };
  return prepare_data(options, hooks).has_value();
}

TEST_CASE("stopped at any time and called again, the same files come out", "[data][prepare]") {
  const ScratchFolder folder;
  write_corpus(folder / "in");
  REQUIRE(prepare_data(options_for(folder / "in", folder / "whole"), {}));
  const PrepareOptions options = options_for(folder / "in", folder / "out");
  int calls = 1;
  while (!finishes(options, 1000 * calls)) {
    REQUIRE(++calls < 100);
    CHECK((!fs::exists(folder / "out") || has_unfinished(folder / "out")));
    CHECK_FALSE(fs::exists(folder / "out/train.bin"));
  }
  CHECK(calls > 5);
  check_same_output(folder / "out", folder / "whole");
  CHECK_FALSE(has_unfinished(folder / "out"));
}

TEST_CASE("stopped before there is anything, nothing is left behind", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a", "text");
  for (int stop_at = 0; stop_at < 3; ++stop_at) {
    int asked = 0;
    PrepareHooks hooks;
    hooks.stop_requested = [&] { return asked++ >= stop_at; };
    CHECK_FALSE(prepare_data({.input = {folder / "in"}, .output = folder / "out"}, hooks));
    CHECK_FALSE(fs::exists(folder / "out"));
  }
}

/// The life of a child process, which must not come back into the test.
[[noreturn]] void end_with(const PrepareOptions& options) {
  PrepareHooks hooks{.save_interval = std::chrono::milliseconds(0)};
  int code = 1;
  try {
    code = prepare_data(options, hooks).has_value() ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(code);
}

TEST_CASE("killed at any moment and called again, the same files come out",
          "[data][prepare][slow]") {
  const ScratchFolder folder;
  write_corpus(folder / "in");
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(prepare_data(options_for(folder / "in", folder / "whole"), {}));
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  std::uint32_t state = 7;
  int killed = 0;
  for (int run = 0; run < 5; ++run) {
    const std::string out = folder / ("out" + std::to_string(run));
    int tries = 0;
    for (bool finished = false; !finished; ++tries) {
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        end_with(options_for(folder / "in", out));
      }
      state = state * 1664525U + 1013904223U;
      // Mostly before an undisturbed call would have ended, whatever the machine; later each time,
      // in case it has become busier since.
      std::this_thread::sleep_for(whole * (state % 1000) * (10 + tries) / 10'000);
      ::kill(child, SIGKILL);
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
      killed += WIFSIGNALED(status) ? 1 : 0;
      // It may have been killed behind its last deed but one.
      finished = WIFEXITED(status) || (fs::exists(out + "/dataset.json") && !has_unfinished(out));
      if (finished) fs::remove(out + "/documents.partial");
    }
    check_same_output(out, folder / "whole");
  }
  CHECK(killed >= 3);
}

/// The error of a second call.
std::string refusal(const PrepareOptions& options) {
  try {
    (void)prepare_data(options, {});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(accepted)";
}

/// A folder with a call that was interrupted in it.
class Interrupted {
 public:
  Interrupted() {
    write_corpus(folder_ / "in");
    options = options_for(folder_ / "in", folder_ / "out");
    REQUIRE_FALSE(finishes(options, 200'000));
    REQUIRE(has_unfinished(options.output));
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

  PrepareOptions options;

 private:
  ScratchFolder folder_;
};

TEST_CASE("what was begun with other settings is not continued", "[data][prepare]") {
  const Interrupted before;
  PrepareOptions other = before.options;
  other.seed = 5;
  CHECK_THAT(refusal(other), Contains("--seed: 1234 there, 5 now") && Contains("--overwrite"));
  other = before.options;
  other.append_eod.reset();
  CHECK_THAT(refusal(other), Contains("--append-eod: 300 there, none now"));
  other = before.options;
  other.field = "body";
  CHECK_THAT(refusal(other), Contains("--field: text there, body now"));
  CHECK(has_unfinished(before.options.output));
  other = before.options;
  other.seed = 5;
  other.overwrite = true;
  REQUIRE(prepare_data(other, {}));
  other.output = before.path("whole");
  REQUIRE(prepare_data(other, {}));
  check_same_output(before.path("out"), before.path("whole"));
}

TEST_CASE("what was begun on other input is not continued", "[data][prepare]") {
  const Interrupted before;
  // Input behind the place that was reached may change.
  write_file(before.path("in/b.txt"), "a changed file");
  PrepareOptions options = before.options;
  options.on_bad_line = PrepareOptions::OnBadLine::kStop;
  CHECK_THAT(refusal(options), Contains("a.jsonl:") && Contains("has no field"));
  write_file(before.path("in/a.jsonl"), "{\"text\": \"changed\"}\n");
  CHECK_THAT(refusal(before.options),
             Contains("of other input files, or of files that have changed since"));
}

TEST_CASE("kept files that were damaged are not gone on with", "[data][prepare]") {
  for (const std::string name : {"train.bin.partial", "documents.partial", "prepare.resume"}) {
    INFO(name);
    const Interrupted before;
    const std::string path = before.path("out/" + name);
    std::string content = test::read_file(path);
    content[content.size() / 3] = static_cast<char>(content[content.size() / 3] ^ 1);
    if (name == "prepare.resume") content = "{\"version\": 99}";
    write_file(path, content);
    CHECK_THAT(refusal(before.options), Contains("--overwrite starts over"));
  }
}

TEST_CASE("killed while the files get their names, the next call finishes it", "[data][prepare]") {
  const ScratchFolder folder;
  write_file(folder / "in/a.txt", "a text");
  write_file(folder / "in/b.txt", "another");
  const PrepareOptions options{
      .input = {folder / "in"}, .output = folder / "out", .validation = 0.0};
  PrepareOptions whole = options;
  whole.output = folder / "whole";
  REQUIRE(prepare_data(whole, {}));
  REQUIRE(prepare_data(options, {}));
  const std::string out = folder / "out";
  // The state that an interruption would have left: a record, and one file that has its name.
  PrepareHooks hooks{.save_interval = std::chrono::milliseconds(0)};
  fs::remove_all(out);
  bool is_enough = false;
  hooks.on_progress = [&](const PrepareProgress& progress) {
    is_enough = progress.bytes_done > 0 && progress.bytes_done == progress.bytes_total;
  };
  hooks.stop_requested = [&] { return is_enough; };
  REQUIRE_FALSE(prepare_data(options, hooks));
  auto record = nlohmann::json::parse(test::read_file(out + "/prepare.resume"));
  record["is_publishing"] = true;
  write_file(out + "/prepare.resume", record.dump());
  fs::rename(out + "/train.bin.partial", out + "/train.bin");
  write_file(out + "/train.hashes", "half");
  REQUIRE(prepare_data(options, {}));
  CHECK(files_of(out) == files_of(folder / "whole"));
}

TEST_CASE("a bad line is mended by calling again with another answer to it", "[data][prepare]") {
  const ScratchFolder folder;
  write_corpus(folder / "in");
  PrepareOptions options = options_for(folder / "in", folder / "out");
  REQUIRE(prepare_data(options_for(folder / "in", folder / "whole"), {}));
  options.on_bad_line = PrepareOptions::OnBadLine::kStop;
  options.exclude = {"a.jsonl"};
  CHECK_THAT(refusal(options), Contains("d.jsonl.zst:1000: has no field"));
  CHECK(has_unfinished(options.output));
  options.on_bad_line = PrepareOptions::OnBadLine::kSkip;
  REQUIRE(prepare_data(options, {}));
  options.output = folder / "without";
  REQUIRE(prepare_data(options, {}));
  check_same_output(folder / "out", folder / "without");
}

/// Stops a prepare_data halfway, goes on, and holds the outcome to a call that names the tokenizer
/// which was made.
void check_made_once(const ScratchFolder& folder, PrepareOptions options, const char* file) {
  for (int text = 0; text < 20; ++text) {
    std::string lines;
    for (int line = 0; line < 300; ++line) {
      lines += "some words " + std::to_string((text * 300 + line) * 7919 % 1000) + " to learn\n";
    }
    write_file(folder / ("in/" + std::to_string(text)), lines);
  }
  options.input = {folder / "in"};
  options.output = folder / "out";
  using Phase = PrepareProgress::Phase;
  bool trained = false;
  bool is_enough = false;
  PrepareHooks hooks;
  hooks.on_progress = [&](const PrepareProgress& progress) {
    trained = trained || progress.phase == Phase::kTraining || progress.phase == Phase::kMerging;
    is_enough = progress.files_done == 10;
  };
  hooks.stop_requested = [&] { return is_enough; };
  REQUIRE_FALSE(prepare_data(options, hooks));
  REQUIRE(has_unfinished(options.output));
  CHECK(trained);
  trained = false;
  hooks.stop_requested = [] { return false; };
  const auto summary = prepare_data(options, hooks);
  REQUIRE(summary);
  CHECK_FALSE(trained);
  PrepareOptions again = options;
  again.train_sentencepiece.reset();
  again.train_bpe.reset();
  again.append_eod = summary->append_eod;
  again.tokenizer = options.output + "/" + file;
  again.output = folder / "whole";
  const auto whole = prepare_data(again, {});
  REQUIRE(whole);
  CHECK(summary->train.content == whole->train.content);
  CHECK(summary->identity == whole->identity);
}

TEST_CASE("a tokenizer that was made before the interruption is made once", "[data][prepare]") {
  const ScratchFolder folder;
  check_made_once(folder, {.train_sentencepiece = 300, .append_eod = 2}, "tokenizer.model");
}

TEST_CASE("a byte-level BPE tokenizer, too, is made once", "[data][prepare]") {
  const ScratchFolder folder;
  check_made_once(folder, {.train_bpe = BpeTraining{.vocab_size = 300}}, "tokenizer.json");
  PrepareOptions other{.input = {folder / "in"},
                       .output = folder / "other",
                       .train_bpe = BpeTraining{.vocab_size = 300}};
  bool counting = false;  // stopped while it learns, nothing is left
  PrepareHooks hooks;
  hooks.on_progress = [&](const PrepareProgress& progress) {
    counting = counting || progress.phase == PrepareProgress::Phase::kCounting;
  };
  hooks.stop_requested = [&] { return counting; };
  CHECK_FALSE(prepare_data(other, hooks));
  CHECK_FALSE(fs::exists(other.output));
}

}  // namespace
}  // namespace dstrain
