// A run over several hosts that hangs, loses a host for good, or is killed again and again: what is
// told, and how the run goes on. Numbers Fn are those of the table of faults in the README.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FleetRun;
using testing::HostProcess;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST_CASE("F3: a rank that is stopped on another host is named as the one that did not arrive",
          "[cluster][hang][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(3, 1);
  const auto launch = run.launch({"--step-timeout", "3"});
  REQUIRE(run.tiny().reaches_step(3));
  const HostProcess victim = run.ranks_on(1).at(0);
  const auto start = Clock::now();
  kill(victim.pid, SIGSTOP);
  CHECK(testing::becomes_true(
      [&] { return launch->err().find("the job hangs") != std::string::npos; }, seconds{20}));
  const double told = seconds_since(start);
  CHECK(launch->wait(seconds{30}) == 8);
  std::printf("F3 rank stopped: limit 3 s, told after %.1f s, ended after %.1f s\n", told,
              seconds_since(start));
  INFO(launch->err());
  CHECK(told > 2.0);
  CHECK_THAT(launch->last_line(),
             Contains("rank 1 (local rank 0) on w1, pid " + std::to_string(victim.pid_on_host) +
                      ", did not arrive: it is stopped (state T)") &&
                 Contains("the other 2 ranks wait for it: rank 0 is waiting in"));
  CHECK(run.nothing_is_left(seconds{20}));
}

TEST_CASE("F4: a host that does not come back is left out, and the run keeps its batch",
          "[cluster][elastic][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(3, 1);
  const auto launch = run.launch({"--max-restarts", "3", "--min-nodes", "2", "--set",
                                  "training.steps=60", "--set", "checkpoint.interval=5"});
  REQUIRE(run.tiny().reaches_step(8));
  const auto start = Clock::now();
  run.host(1).power_off();
  CHECK(launch->wait(seconds{150}) == 0);
  std::printf("F4 power off, restart on the other hosts: done after %.1f s\n",
              seconds_since(start));
  INFO(launch->err());
  CHECK_THAT(launch->err(), Contains("restart 1 of 3: rank 1 on w1 was lost: ") &&
                                Contains("host w1 is left out: it does not answer: ") &&
                                Contains("2 hosts × 1 instead of 3 hosts × 1: 6 sequences a step "
                                         "as before, in 3 micro-batches of 1"));
  CHECK(testing::losses_in(run.tiny().read("run/metrics.jsonl")).size() == 60);
}

TEST_CASE(
    "a run over four hosts whose ranks and agents are killed all the time ends as if nothing "
    "had happened",
    "[cluster][restart][slow]") {
  if (testing::no_cluster_here()) return;
  // Steps of some milliseconds, so that there is time to be killed in.
  const std::vector<std::string> flags = {
      "--set", "training.steps=300",     "--set", "checkpoint.interval=10",
      "--set", "model.hidden_size=96",   "--set", "model.num_hidden_layers=4",
      "--set", "data.sequence_length=64"};
  FleetRun undisturbed(4, 1);
  const auto straight = undisturbed.launch(flags);
  REQUIRE(straight->wait(seconds{150}) == 0);

  FleetRun run(4, 1);
  std::vector<std::string> with_restarts = flags;
  with_restarts.insert(with_restarts.end(),
                       {"--max-restarts", "50", "--max-restarts-without-progress", "50"});
  const auto launch = run.launch(with_restarts);
  const auto start = Clock::now();
  std::mt19937 random(11);
  int killed = 0;
  while (!launch->wait(milliseconds{1000 + random() % 1000})) {
    REQUIRE(Clock::now() - start < seconds{240});
    const int host = static_cast<int>(random() % 4);
    const std::vector<HostProcess> ranks = run.ranks_on(host);
    if (ranks.empty() || killed == 20) continue;  // between two attempts
    const bool takes_host = random() % 3 == 0;
    kill(takes_host ? run.agent_on(host).pid : ranks[0].pid, SIGKILL);
    ++killed;
  }
  std::printf("300 steps over 4 hosts, %d ranks and agents killed: %.1f s\n", killed,
              seconds_since(start));
  INFO(launch->err());
  CHECK(launch->wait(milliseconds{0}) == 0);
  CHECK(testing::losses_in(run.tiny().read("run/metrics.jsonl")) ==
        testing::losses_in(undisturbed.tiny().read("run/metrics.jsonl")));
  CHECK(run.nothing_is_left(seconds{20}));
}

}  // namespace
}  // namespace dstrain
