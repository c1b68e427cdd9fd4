// metrics.jsonl and ranks.jsonl: on a disk that is full for a while, and the number of their lines.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/train/records/metrics_files.h"
#include "engine/train/records/recent_ranks.h"
#include "engine/train/records/step_lines.h"
#include "engine/train/resident_memory.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

/// No file of this process may grow beyond so many bytes while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

std::vector<std::int64_t> steps_in(const std::filesystem::path& path) {
  std::vector<std::int64_t> steps;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step"));
  }
  return steps;
}

TEST_CASE("the recent file has the means of the last ten steps", "[train]") {
  const checkpoint_test::ScratchFolder folder;
  std::ofstream(folder.path() / RecentRanks::kFile) << "of an earlier start";
  RecentRanks recent(folder.path());
  CHECK_FALSE(std::filesystem::exists(folder.path() / RecentRanks::kFile));
  for (std::int64_t step = 1; step <= 30; ++step) {
    StepMetrics metrics{.step = step};
    const auto seconds = static_cast<double>(step);
    metrics.memory.resize(2);
    metrics.times = {{.total = seconds},
                     {.total = 2.0 * seconds, .slow_peer = 0, .slow_peer_seconds = 0.5}};
    recent.write(metrics, step == 30);
  }
  std::ifstream in(folder.path() / RecentRanks::kFile);
  const auto line = nlohmann::json::parse(in);
  CHECK(line["step"] == 30);
  CHECK(line["seconds"]["computing"] == nlohmann::json{25.5, 51.0});  // of steps 21 to 30
  CHECK(line["seconds"]["bytes_waited_for"] == nlohmann::json{0.5, 0.0});
}

TEST_CASE("lines that could not be written come later, and none is ever half there", "[train]") {
  const checkpoint_test::ScratchFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsFiles metrics(folder.path(), 0, 4);
  const auto write = [&](std::int64_t step) { metrics.write({.step = step}, step == 4); };
  write(1);
  const std::vector<std::int64_t> first{1};
  CHECK(steps_in(path) == first);
  {
    const FileSizeLimit full(std::filesystem::file_size(path) + 40);  // room for half a line
    CHECK_THROWS_WITH(write(2), Catch::Contains("cannot write step 2 to") &&
                                    Catch::Contains("metrics.jsonl: File too large; it needs") &&
                                    Catch::Contains("ulimit -f"));
    CHECK(metrics.has_unwritten());
    CHECK(steps_in(path) == first);
    CHECK_THROWS_AS(write(3), StorageError);
    CHECK(steps_in(path) == first);
  }
  write(4);
  CHECK_FALSE(metrics.has_unwritten());
  CHECK(steps_in(path) == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(steps_in(folder.path() / "ranks.jsonl") == std::vector<std::int64_t>{1, 2, 3, 4});
}

TEST_CASE("the ranks' file has about a hundred lines, however long a run is", "[train]") {
  const checkpoint_test::ScratchFolder folder;
  const auto write = [&](std::int64_t from, std::int64_t to, std::int64_t last) {
    MetricsFiles metrics(folder.path(), from, last);
    for (std::int64_t step = from + 1; step <= to; ++step)
      metrics.write({.step = step}, step == to);
  };
  write(0, 1234, 5000);  // stopped by a signal
  std::vector<std::int64_t> steps = steps_in(folder.path() / "ranks.jsonl");
  CHECK(steps.size() == 26);
  CHECK(steps.front() == 1);
  CHECK(steps[1] == 50);
  CHECK(steps.back() == 1234);
  write(1200, 5000, 5000);  // goes on from an earlier checkpoint
  steps = steps_in(folder.path() / "ranks.jsonl");
  CHECK(steps.size() == 102);
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  CHECK(std::find(steps.begin(), steps.end(), 1201) != steps.end());
  CHECK(std::find(steps.begin(), steps.end(), 1234) == steps.end());
  CHECK(steps.back() == 5000);
  CHECK(steps_in(folder.path() / "metrics.jsonl").size() == 5000);
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string log_of(const std::function<void()>& work) {
  const testing::CapturedLog log;
  work();
  return log.text();
}

/// The content of such a file, and the log, after a run has continued after `step`.
struct Reopened {
  std::string content;
  std::string log;
};
Reopened reopen(const std::string& content, std::int64_t step) {
  const checkpoint_test::ScratchFolder folder;
  const auto path = folder.path() / "steps.jsonl";
  std::ofstream(path, std::ios::binary) << content;
  Reopened result;
  result.log = log_of([&] {
    StepLines lines(path, step);
    lines.add(99, R"({"step":99})");
    lines.flush();
  });
  result.content = content_of(path);
  CHECK_FALSE(std::filesystem::exists(path.string() + ".tmp"));
  constexpr std::string_view kAdded = "{\"step\":99}\n";
  REQUIRE(result.content.ends_with(kAdded));
  result.content.resize(result.content.size() - kAdded.size());
  return result;
}

std::string lines_of(std::int64_t from, std::int64_t to) {
  std::string text;
  for (std::int64_t step = from; step <= to; ++step)
    text += metrics_line({.step = step}, {}) + "\n";
  return text;
}

TEST_CASE("a line that is no step's is cut out and told, and every other stays", "[train]") {
  const std::string half = metrics_line({.step = 4}, {}).substr(0, 70);
  const std::string bad = GENERATE_COPY(
      std::string(R"({"step":"4"})"), std::string(R"({"step":4.5})"), std::string(R"({"step":-4})"),
      std::string(R"({"loss":4})"), std::string(R"(["step",4])"), std::string("edited by hand"),
      std::string(), half, half + metrics_line({.step = 5}, {}), std::string(512, '\0'),
      std::string(512, '\0') + metrics_line({.step = 5}, {}), std::string(2 << 20, '['),
      std::string("{\"step\":4,\"loss\":\xff}"));
  INFO(bad.substr(0, 100));
  const std::string before = lines_of(1, 3);
  {
    const Reopened middle = reopen(before + bad + "\n" + lines_of(5, 12), 10);
    CHECK(middle.content == before + lines_of(5, 10));
    CHECK_THAT(middle.log, Catch::Contains("steps.jsonl:4: is not the line of a step: removed"));
  }
  {
    const Reopened late = reopen(lines_of(1, 12) + bad + "\n" + lines_of(13, 15), 10);
    CHECK(late.content == lines_of(1, 10));
    CHECK_THAT(late.log, Catch::Contains("steps.jsonl:13: is not the line of a step"));
  }
  if (!bad.empty()) {
    const Reopened torn = reopen(lines_of(1, 10) + bad, 10);
    CHECK(torn.content == lines_of(1, 10));
    CHECK_THAT(torn.log, Catch::Contains("steps.jsonl:11: is not the line of a step"));
  }
  const Reopened all = reopen(bad + "\n" + bad + "\n" + bad + "\n", 10);
  CHECK(all.content.empty());
  CHECK_THAT(all.log,
             Catch::Contains("steps.jsonl:1: is not the line of a step, nor are 2 others"));
}

TEST_CASE("lines of steps are kept as they are", "[train]") {
  const std::string whole = lines_of(1, 10);
  CHECK(reopen(whole, 10).content == whole);
  CHECK(reopen(whole, 10).log.empty());
  CHECK(reopen(whole, 4).content == lines_of(1, 4));
  CHECK(reopen(whole, 4).log.empty());
  CHECK(reopen(whole, 0).content.empty());
  CHECK(reopen(whole.substr(0, whole.size() - 1), 10).content == whole);  // the last has no end
  const std::string foreign = "{ \"loss\" : 1, \"step\" : 3 }\n";
  CHECK(reopen(foreign + whole, 4).content == foreign + lines_of(1, 4));
  // The file of a run whose folder was mixed with another's: later steps in the middle.
  CHECK(reopen(whole + whole, 7).content == lines_of(1, 7) + lines_of(1, 7));
}

TEST_CASE("lines may lie across the window, and one is longer than all of it", "[train]") {
  std::string text;
  std::size_t kept = 0;
  for (std::int64_t step = 1; text.size() < (std::size_t{12} << 20); ++step) {
    StepMetrics metrics{.step = step};
    metrics.memory.resize(step == 500 ? 200'000 : static_cast<std::size_t>(step % 97 + 1));
    text += ranks_line(metrics, {}) + "\n";
    if (step <= 5000) kept = text.size();
  }
  REQUIRE(kept < text.size());
  CHECK(reopen(text, 5000).content == text.substr(0, kept));
}

TEST_CASE("zeros of any length are read past without holding them", "[train]") {
  const checkpoint_test::ScratchFolder folder;
  const auto path = folder.path() / "steps.jsonl";
  std::ofstream(path) << lines_of(1, 3);
  std::filesystem::resize_file(path, std::uintmax_t{200} << 20);
  const std::int64_t before = resident_memory().own_bytes;
  const std::string log = log_of([&] { StepLines(path, 3); });
  CHECK(content_of(path) == lines_of(1, 3));
  CHECK_THAT(log, Catch::Contains("steps.jsonl:4: "));
  CHECK(resident_memory().own_bytes - before < std::int64_t{150} << 20);
}

// Takes 2 GiB of the disk: named, it prints its time (metrics_file_test "2 GiB*").
TEST_CASE("2 GiB of lines are gone through in seconds, in little memory", "[.][train][slow]") {
  const checkpoint_test::ScratchFolder folder;
  const auto path = folder.path() / "steps.jsonl";
  std::int64_t last = 0;
  {
    StepMetrics metrics{.loss = 2.123456789, .learning_rate = 3e-4, .grad_norm = 0.987654321};
    metrics.memory.resize(1);
    std::ofstream out(path, std::ios::binary);
    for (std::int64_t bytes = 0; bytes < std::int64_t{2} << 30;) {
      metrics.step = ++last;
      const std::string line = metrics_line(metrics, {}) + "\n";
      bytes += static_cast<std::int64_t>(line.size());
      out << line;
    }
  }
  const auto open = [&](const char* what, std::int64_t step) {
    const std::int64_t before = resident_memory().own_bytes;
    const auto begin = std::chrono::steady_clock::now();
    const std::string log = log_of([&] { StepLines(path, step); });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::int64_t grown = resident_memory().own_bytes - before;
    WARN(what << ": " << seconds << " s, " << (grown >> 20) << " MiB; " << last << " lines; "
              << log);
    CHECK(grown < std::int64_t{100} << 20);
  };
  open("nothing to cut", last);
  open("the last 1000 to cut", last - 1000);
  {
    std::fstream damage(path, std::ios::binary | std::ios::in | std::ios::out);
    damage.seekp(1000);
    damage.write("\0\0\0\0", 4);
  }
  open("one bad line in front", last - 1000);
}

TEST_CASE("what is no plain file is not taken for one of steps", "[train]") {
  const checkpoint_test::ScratchFolder folder;
  const auto path = folder.path() / "steps.jsonl";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(StepLines(path, 3), Catch::Contains("steps.jsonl: is a pipe, not a file"));
}

}  // namespace
}  // namespace dstrain
