// Which ranks are reported as slow. Ranks and time are made up.
#include "launcher/supervision/straggler_watch.h"

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

/// Ranks that take one step a second, all together, since they wait for the slowest.
class SlowJob {
 public:
  explicit SlowJob(std::vector<double> seconds_a_step, std::vector<int> comparable = {})
      : seconds(std::move(seconds_a_step)), specs_(seconds.size()) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      specs_[i].host = "w" + std::to_string(i);
      specs_[i].rank = static_cast<int>(i);
      RankStatus status;
      status.comparable = comparable.empty() ? 0 : comparable[i];
      ranks_.push_back({.spec = &specs_[i], .pid = 100, .status = status});
    }
  }
  /// Lets `steps` steps pass.
  std::vector<std::string> run(int steps) {
    std::vector<std::string> told;
    for (int step = 0; step < steps; ++step) {
      now_ += 1s;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        ranks_[i].status->num_steps += 1;
        ranks_[i].status->computing +=
            std::chrono::nanoseconds{static_cast<std::int64_t>(seconds[i] * 1e9)};
      }
      for (std::string& sentence : watch_.observe(now_, ranks_))
        told.push_back(std::move(sentence));
    }
    return told;
  }

  std::vector<double> seconds;  ///< computing, of each second

 private:
  std::vector<ProcessSpec> specs_;
  std::vector<RankObservation> ranks_;
  StragglerWatch watch_{StragglerLimits{}};
  StragglerWatch::TimePoint now_{1000s};
};

TEST_CASE("a rank that computes longer than the others is named once, and once when it recovers",
          "[launcher][straggler]") {
  SlowJob job({0.3, 0.9, 0.3, 0.35});
  CHECK(job.run(20).empty());
  const auto told = job.run(200);
  REQUIRE(told.size() == 1);
  CHECK_THAT(
      told[0],
      Contains("rank 1 (local rank 0) on w1, pid 100, is slow: it computes for 0.9 s a step, "
               "3.0 × the median of the 3 other ranks that do the same work, over the last "
               "20 steps"));
  job.seconds[1] = 0.42;  // between the two factors: neither
  CHECK(job.run(100).empty());
  job.seconds[1] = 0.3;
  const auto recovered = job.run(100);
  REQUIRE(recovered.size() == 1);
  CHECK_THAT(recovered[0], Contains("rank 1") && Contains("no longer slow"));
}

TEST_CASE("of two ranks the slower one is named", "[launcher][straggler]") {
  SlowJob job({0.2, 0.5});
  const auto told = job.run(50);
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Contains("rank 1 ") && Contains("2.5 × the median of the one other rank"));
}

TEST_CASE("nobody is named among equals, or for other work", "[launcher][straggler]") {
  CHECK(SlowJob({0.3, 0.4, 0.35, 0.3}).run(200).empty());
  CHECK(SlowJob({0.3, 0.3, 0.9, 0.9}, {0, 0, 1, 1}).run(200).empty());  // a heavier stage
  CHECK(SlowJob({0.3, 0.9}, {0, 1}).run(200).empty());
  CHECK(SlowJob({0.3}).run(200).empty());
}

}  // namespace
}  // namespace dstrain::launcher
