// Runs whose optimizer states are on a disk, or their parameters too, killed at any moment or
// refused by the disk: nothing is left of the states, and the last checkpoint is whole: the run
// that resumes from it ends in the bits of a run that nothing happened to.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/storage_error.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/sweep.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kRanks = 2;
constexpr int kStorageFailed = 6;
constexpr int kOther = 1;

/// The folder of the states: on a disk, as this one is where tests run; removed at the end.
class Scratch {
 public:
  Scratch() : path_(fs::current_path() / fmt::format(".scratch-of-test-{}", ::getpid())) {
    fs::create_directory(path_);
  }
  ~Scratch() { fs::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Stage 3 where parameters are to lie on the disk with the states, else stage 1.
json in_memory(bool parameters) {
  json zero{{"stage", parameters ? 3 : 1}};
  if (parameters) zero["stage3_param_persistence_threshold"] = 0;
  return {{"bf16", {{"enabled", true}}}, {"zero_optimization", zero}};
}

json on_disk(const Scratch& scratch, bool parameters) {
  json changes = in_memory(parameters);
  if (parameters) changes["zero_optimization"]["offload_param"] = {{"device", "nvme"}};
  changes["zero_optimization"]["offload_optimizer"] = {{"device", "nvme"},
                                                       {"nvme_path", scratch.path().string()}};
  changes["zero_optimization"]["sub_group_size"] = 4096;
  return changes;
}

/// Runs in a process of its own, of which `disturb` may do with its own what it likes, beside the
/// run.
pid_t start(const LoadedConfig& config, const std::function<void()>& disturb = {}) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child > 0) {
    return child;
  }
  spdlog::set_level(spdlog::level::off);
  try {
    std::thread(disturb ? disturb : [] {}).detach();
    (void)run(config, kRanks);
    ::_exit(0);
  } catch (const StorageError&) {
    ::_exit(kStorageFailed);
  } catch (...) {
    ::_exit(kOther);
  }
}

/// Runs that are to end as one of eight steps that nothing happened to.
class Disturbed {
 public:
  explicit Disturbed(bool parameters) : parameters_(parameters) {
    const LoadedConfig straight = config_of(folder_, "straight", 8, kRanks, memory());
    CHECK(run(straight, kRanks).step == 8);
    expected_ = state_of(folder_, "straight", straight);
  }

  /// Saves after four steps, and then goes on without end and without saving, in a process of its
  /// own.
  pid_t start_second_half(const std::string& name, const std::function<void()>& disturb = {}) {
    constexpr int kEndless = 1'000'000;
    CHECK(run(config_of(folder_, name, 4, kRanks, disk()), kRanks).step == 4);
    json endless = disk();
    endless["checkpoint"] = {{"interval", kEndless}};
    return start(config_of(folder_, name, kEndless, kRanks, endless), disturb);
  }

  void check_that_it_resumes(const std::string& name) {
    CHECK(fs::is_empty(scratch_.path()));
    CHECK(run(config_of(folder_, name, 8, kRanks, disk()), kRanks).step == 8);
    CHECK(state_of(folder_, name, config_of(folder_, name, 8, kRanks, memory())) == expected_);
  }

 private:
  [[nodiscard]] json memory() const { return in_memory(parameters_); }
  [[nodiscard]] json disk() const { return on_disk(scratch_, parameters_); }

  bool parameters_;
  RunFolder folder_;
  Scratch scratch_;
  std::vector<std::vector<float>> expected_;
};

TEST_CASE("a run that is killed leaves nothing of its states, and resumes to the bit",
          "[failure][offload]") {
  const bool parameters = GENERATE(false, true);
  CAPTURE(parameters);
  Disturbed runs(parameters);
  int number = 0;
  // While states are first written, and in the midst of steps.
  for (const int milliseconds : {3, 10, 17, 29, 41, 67, 111, 200}) {
    if (number++ % testing::one_in_if_sanitized(3) != 0) continue;
    CAPTURE(milliseconds);
    const std::string name = fmt::format("killed{}", milliseconds);
    const pid_t child = runs.start_second_half(name);
    std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    runs.check_that_it_resumes(name);
  }
}

TEST_CASE("a disk that refuses a write ends the run, with the last checkpoint whole",
          "[failure][offload]") {
  const bool parameters = GENERATE(false, true);
  CAPTURE(parameters);
  Disturbed runs(parameters);
  const pid_t child = runs.start_second_half("refused", [] {
    constexpr std::chrono::milliseconds kInTheMidst{300};
    std::this_thread::sleep_for(kInTheMidst);
    (void)::signal(SIGXFSZ, SIG_IGN);
    // Beyond this byte of any file the system refuses to write from now on.
    const rlimit least{.rlim_cur = 65536, .rlim_max = 65536};
    (void)::setrlimit(RLIMIT_FSIZE, &least);
  });
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kStorageFailed);
  runs.check_that_it_resumes("refused");
}

}  // namespace
}  // namespace dstrain::test
