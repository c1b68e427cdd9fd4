// metrics.jsonl and ranks.jsonl: on a disk that has no room for a while, and how many lines there
// are.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/train/metrics.h"
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
    CHECK_THROWS_WITH(write(2), Catch::Contains("metrics.jsonl: the line of step 2"));
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

}  // namespace
}  // namespace dstrain
