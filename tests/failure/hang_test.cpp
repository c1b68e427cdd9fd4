// dstrain itself, training, while a rank stops, loops for ever, or is merely slow.
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/injected_code.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;
using Clock = std::chrono::steady_clock;

constexpr double kLimit = 3.0;     // --step-timeout
constexpr double kPromised = 2.0;  // after it
constexpr double kBusyMachine = 2.0;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Makes one rank of a run hang; checks that it, and no other, is named in time, and that the job
/// ends with exit code 8.
template <typename MakeHang>
void hang_is_reported(const char* what, const std::string& state, const MakeHang& make_hang) {
  const TinyRun run;
  Program launch(run.launch({"--step-timeout", "3"}));
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  if (!make_hang(ranks[1])) return;
  const auto start = Clock::now();
  CHECK(testing::becomes_true(
      [&] { return launch.err().find("the job hangs") != std::string::npos; }, seconds{20}));
  const double reported = seconds_since(start);
  CHECK(launch.wait(seconds{20}) == 8);
  const double ended = seconds_since(start);
  std::cout << what << ": limit " << kLimit << " s, reported after " << reported
            << " s, ended after " << ended << " s\n";
  INFO(launch.err());
  CHECK(reported > kLimit - 1.0);
  CHECK(reported < kLimit + kPromised + kBusyMachine);
  const std::string named = "rank 1 (local rank 1) on localhost, pid " + std::to_string(ranks[1]) +
                            ", did not arrive: " + state;
  CHECK_THAT(launch.last_line(), Contains("error: the job hung: no rank has finished a step for") &&
                                     Contains("limit 3.00 s, as asked for") && Contains(named) &&
                                     Contains("the other rank waits for it: rank 0 is waiting in"));
  CHECK_THAT(launch.last_line(), !Contains("rank 0 (local rank 0)"));
  for (const pid_t rank : ranks)
    CHECK_FALSE(testing::is_alive(rank));
}

TEST_CASE("a rank that is stopped is named as the one that did not arrive",
          "[failure][hang][slow]") {
  hang_is_reported("SIGSTOP", "it is stopped (state T)",
                   [](pid_t rank) { return kill(rank, SIGSTOP) == 0; });
}

TEST_CASE("a rank in an endless loop is named as the one that did not arrive",
          "[failure][hang][slow]") {
  hang_is_reported("endless loop", "it is running (state R) and has used", [](pid_t rank) {
    const auto obstacle = testing::make_it_loop(rank);
    if (obstacle) testing::skip(*obstacle);
    return !obstacle;
  });
}

/// Stops a process nine tenths of the time, as a machine does that others use as well: more than
/// other tests may keep the other rank waiting meanwhile.
class SlowedDown {
 public:
  explicit SlowedDown(pid_t pid)
      : thread_([pid](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            kill(pid, SIGSTOP);
            std::this_thread::sleep_for(milliseconds{90});
            kill(pid, SIGCONT);
            std::this_thread::sleep_for(milliseconds{10});
          }
        }) {}

 private:
  std::jthread thread_;
};

TEST_CASE(
    "a slow rank is named, those that wait for it are not, and it is reported when it is over",
    "[failure][straggler][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  const auto says = [&](const std::string& text) {
    return testing::becomes_true([&] { return launch.err().find(text) != std::string::npos; },
                                 seconds{30});
  };
  const auto start = Clock::now();
  {
    const SlowedDown slow(ranks[1]);
    CHECK(says("warning: rank 1 (local rank 1) on localhost, pid " + std::to_string(ranks[1]) +
               ", is slow: it computes for"));
    std::cout << "slow rank: named after " << seconds_since(start) << " s\n";
    // Later another test may take the processor from rank 0, which is then reported as it should
    // be.
    CHECK_THAT(launch.err(), !Contains("rank 0 (local rank 0)"));
  }
  CHECK(says("rank 1 (local rank 1) on localhost, pid " + std::to_string(ranks[1]) +
             ", is no longer slow"));
  launch.signal(SIGINT);
  CHECK(launch.wait(seconds{10}) == 130);
}

}  // namespace
}  // namespace dstrain
