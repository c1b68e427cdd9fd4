// metrics.jsonl on a disk that has no room for a while.
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
  MetricsFile metrics(path, 0);
  metrics.write({.step = 1});
  const std::vector<std::int64_t> first{1};
  CHECK(steps_in(path) == first);
  {
    const FileSizeLimit full(std::filesystem::file_size(path) + 40);  // room for half a line
    CHECK_THROWS_AS(metrics.write({.step = 2}), StorageError);
    CHECK(metrics.has_unwritten());
    CHECK(steps_in(path) == first);
    CHECK_THROWS_AS(metrics.write({.step = 3}), StorageError);
    CHECK(steps_in(path) == first);
  }
  metrics.write({.step = 4});
  CHECK_FALSE(metrics.has_unwritten());
  CHECK(steps_in(path) == std::vector<std::int64_t>{1, 2, 3, 4});
}

}  // namespace
}  // namespace dstrain
