// Whether a job that failed starts again. Made-up outcomes.
#include "launcher/supervision/restart_policy.h"

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

constexpr int kUsage = 2;
constexpr int kNumerical = 7;
constexpr int kNoProgress = 9;

JobOutcome failed(int code, const std::string& cause = "rank 1 on w0 was killed by SIGKILL") {
  JobOutcome outcome;
  outcome.exit_code = code;
  outcome.cause = cause;
  outcome.description = cause + ", in full";
  return outcome;
}

RestartPolicy policy_of(int max_restarts, int max_without_progress = 3) {
  return RestartPolicy({.max_restarts = max_restarts,
                        .max_without_progress = max_without_progress,
                        .final_codes = {kUsage, kNumerical},
                        .no_progress_code = kNoProgress});
}

TEST_CASE("nothing restarts unless asked, and what failed keeps its code", "[launcher][restart]") {
  const RestartDecision decision = policy_of(0).decide(failed(137), false);
  CHECK_FALSE(decision.restart);
  CHECK(decision.exit_code == 137);
  CHECK(decision.why_not.empty());
}

TEST_CASE("success, an interruption and a hopeless failure are the end", "[launcher][restart]") {
  CHECK_FALSE(policy_of(5).decide(JobOutcome{}, true).restart);
  CHECK_FALSE(policy_of(5).decide(failed(kUsage), false).restart);
  CHECK(policy_of(5).decide(failed(kNumerical), false).exit_code == kNumerical);
  JobOutcome interrupted = failed(137);
  interrupted.interrupted_by = 2;
  CHECK_FALSE(policy_of(5).decide(interrupted, true).restart);
}

TEST_CASE("a job that gets on is restarted at once, as often as allowed", "[launcher][restart]") {
  RestartPolicy policy = policy_of(20);
  for (int i = 1; i <= 20; ++i) {
    const RestartDecision decision = policy.decide(failed(137), /*progressed=*/true);
    CHECK(decision.restart);
    CHECK(decision.number == i);
    CHECK(decision.delay == 0ms);
  }
  const RestartDecision last = policy.decide(failed(137), true);
  CHECK_FALSE(last.restart);
  CHECK(last.exit_code == 137);
  CHECK(
      last.why_not ==
      "all 20 restarts that were allowed are used up: rank 1 on w0 was killed by SIGKILL, in full");
}

TEST_CASE("restarts that reach no newer checkpoint come later each time, then end",
          "[launcher][restart]") {
  RestartPolicy policy = policy_of(50);
  CHECK(policy.decide(failed(139), false).delay == 1s);  // the first attempt is no restart
  CHECK(policy.decide(failed(139), false).delay == 2s);
  CHECK(policy.decide(failed(139), true).delay == 0s);
  CHECK(policy.decide(failed(139, "rank 1 on w0 hung"), false).restart);
  CHECK(policy.decide(failed(139, "rank 1 on w0 hung"), false).restart);
  const RestartDecision last = policy.decide(failed(139, "rank 1 on w0 hung"), false);
  CHECK_FALSE(last.restart);
  CHECK(last.exit_code == kNoProgress);
  CHECK_THAT(last.why_not, Contains("3 restarts in a row reached no newer checkpoint"));

  RestartPolicy same = policy_of(50, 2);
  static_cast<void>(same.decide(failed(139, "rank 1 on w0 hung"), false));
  static_cast<void>(same.decide(failed(139, "rank 1 on w0 hung"), false));
  CHECK_THAT(same.decide(failed(139, "rank 1 on w0 hung"), false).why_not,
             Contains("each time rank 1 on w0 hung"));
}

}  // namespace
}  // namespace dstrain::launcher
