// dstrain itself, while one of its ranks is stopped where no other rank would miss it: before it
// has become a program, while it starts, while it saves. This is reported at once, and no signal is
// lost.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/skip.h"
#include "tests/harness/stopped_at_birth.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool says(const Program& launch, const std::string& text, milliseconds patience = seconds{10}) {
  return testing::becomes_true([&] { return launch.err().find(text) != std::string::npos; },
                               patience);
}

std::string name_of(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (local rank " + std::to_string(rank) +
         ") on localhost, pid " + std::to_string(pid);
}

TEST_CASE("a rank stopped between fork and exec is reported, and the launcher hears its signals",
          "[failure][stopped][slow]") {
  const TinyRun run;
  Program launch(run.launch(), {}, testing::wait_to_be_traced);
  const int number = GENERATE(1, 2);
  const testing::StoppedAtBirth child = testing::stop_child_at_birth(launch.pid(), number);
  if (!child.obstacle.empty()) return testing::skip(child.obstacle);
  const auto start = Clock::now();
  CHECK(
      says(launch, name_of(number - 1, child.pid) + ", is stopped (state T) and has said nothing"));
  std::cout << "stopped between fork and exec: told after " << seconds_since(start) << " s\n";
  REQUIRE(launch.children().size() == 2);  // the other one was started all the same
  const auto signalled = Clock::now();
  launch.signal(SIGINT);
  CHECK(launch.wait(seconds{10}) == 130);
  std::cout << "SIGINT then: ended after " << seconds_since(signalled) << " s\n";
  INFO(launch.err());
  CHECK_FALSE(testing::is_alive(child.pid));
}

TEST_CASE("a rank that is stopped while it starts is reported, and continues",
          "[failure][stopped][slow]") {
  const TinyRun run;
  Program launch(run.launch(), {}, testing::wait_to_be_traced);
  const testing::StoppedAtBirth child = testing::stop_child_at_birth(launch.pid(), 2);
  if (!child.obstacle.empty()) return testing::skip(child.obstacle);
  REQUIRE(says(launch, name_of(1, child.pid) + ", is stopped"));
  kill(child.pid, SIGCONT);
  CHECK(says(launch, name_of(1, child.pid) + ", continues after "));
  CHECK(run.reaches_step(3));
  launch.signal(SIGTERM);
  CHECK(launch.wait(seconds{10}) == 143);
}

/// A run that does little else than saving, of which a rank has been stopped while it does.
class StoppedWhileSaving {
 public:
  explicit StoppedWhileSaving(const std::vector<std::string>& more)
      : launch(run_.launch(with_saves(more))) {
    if (!run_.reaches_step(2)) return;
    const std::vector<pid_t> ranks = launch.children();
    if (ranks.size() != 2) return;
    rank = ranks[1];
    for (int attempt = 0; attempt < 20 && !is_stopped; ++attempt) {
      const std::size_t told = launch.err().size();
      if (!testing::becomes_true([&] { return is_saving(); }, seconds{10})) return;
      kill(rank, SIGSTOP);
      stopped_at = Clock::now();
      const std::string sentence = name_of(1, rank) + ", is stopped (state T) while ";
      if (!testing::becomes_true(
              [&] { return launch.err().find(sentence, told) != std::string::npos; },
              seconds{10})) {
        return;
      }
      told_after_s = seconds_since(stopped_at);
      is_stopped = launch.err().find(sentence + "saving a checkpoint", told) != std::string::npos;
      if (is_stopped) continue;
      kill(rank, SIGCONT);
      if (!says(launch, name_of(1, rank) + ", continues")) return;
    }
  }

 private:
  static std::vector<std::string> with_saves(std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "checkpoint.interval=1"});
    return more;
  }
  [[nodiscard]] bool is_saving() const {
    std::error_code ended;
    for (const auto& entry :
         std::filesystem::directory_iterator(run_.path("run/checkpoints"), ended)) {
      if (entry.path().filename().native().starts_with(".step-")) return true;
    }
    return false;
  }
  TinyRun run_;

 public:
  Program launch;
  pid_t rank = -1;
  Clock::time_point stopped_at{};
  double told_after_s = 0;
  bool is_stopped = false;
};

TEST_CASE("a rank stopped while it saves is reported at once, and ends the job at --save-timeout",
          "[failure][stopped][slow]") {
  StoppedWhileSaving run({"--save-timeout", "4"});
  INFO(run.launch.err());
  REQUIRE(run.is_stopped);
  CHECK(run.told_after_s < 6.0);
  CHECK(run.launch.wait(seconds{30}) == 8);
  std::cout << "stopped while saving: told after " << run.told_after_s
            << " s, limit 4 s, ended after " << seconds_since(run.stopped_at) << " s\n";
  CHECK_THAT(run.launch.last_line(), Contains("for a save, as asked for") &&
                                         Contains(name_of(1, run.rank) + ", did not arrive"));
}

TEST_CASE("one SIGTERM ends a run of which a rank is stopped while it saves",
          "[failure][stopped][slow]") {
  StoppedWhileSaving run({});
  INFO(run.launch.err());
  REQUIRE(run.is_stopped);
  const auto signalled = Clock::now();
  run.launch.signal(SIGTERM);
  CHECK(run.launch.wait(seconds{10}) == 143);
  std::cout << "SIGTERM then: ended after " << seconds_since(signalled) << " s\n";
}

}  // namespace
}  // namespace dstrain
