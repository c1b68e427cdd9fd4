// F21: hosts whose clocks disagree. The agent and the ranks of one host live an hour in the future,
// by libfaketime; their monotonic clocks are true, as on a host whose time is set wrong.
#include <csignal>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::FleetRun;

constexpr const char* kFaketime = "/usr/bin/faketime";
constexpr const char* kAgent = "/mnt/home/dstrain";

bool no_faketime_here() {
  if (access(kFaketime, X_OK) == 0) return false;
  testing::skip("faketime is not installed");
  return true;
}

/// The program as each host has it: on w1 in another time.
void install_agents(FleetRun& run, const std::string& offset) {
  for (int i = 0; i < run.cluster().size(); ++i) {
    const std::string other_time =
        i == 1 ? fmt::format("FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 exec {} -f {} ",
                             kFaketime, offset)
               : std::string("exec ");
    run.host(i).write(
        kAgent, fmt::format("#!/bin/sh\n{}{} \"$@\"\n", other_time, testing::dstrain_binary()));
    run.host(i).run(fmt::format("chmod 755 {}", kAgent));
  }
}

TEST_CASE("F21: a clock that is an hour off is reported, and changes neither losses nor blame",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here() || no_faketime_here()) return;
  const std::string offset = GENERATE("+3600s", "-3600s");
  FleetRun run(2, 1);
  install_agents(run, offset);
  const std::vector<std::string> steps = {"--set", "training.steps=20"};
  const auto straight = run.launch(steps);
  REQUIRE(straight->wait(seconds{60}) == 0);
  const auto expected = testing::losses_in(run.tiny().read("run/metrics.jsonl"));
  CHECK(expected.size() == 20);

  const std::string other = run.path("skewed");
  const auto skewed = run.launch({"--agent-path", kAgent, "--set", "training.steps=20", "--set",
                                  "training.output_dir=" + other});
  const auto code = skewed->wait(seconds{60});
  INFO(skewed->err());
  CHECK(code == 0);
  CHECK_THAT(skewed->err(), Contains("w1: its clock is 3") &&
                                Contains(offset[0] == '+' ? " ahead of " : " behind "));
  CHECK(testing::losses_in(run.tiny().read("skewed/metrics.jsonl")) == expected);

  // The rank that died first is to blame, whatever the clocks of the observers say.
  const auto doomed =
      run.launch({"--agent-path", kAgent, "--set", "training.output_dir=" + run.path("doomed")});
  REQUIRE(testing::becomes_true(
      [&] {
        return run.tiny().read("doomed/metrics.jsonl").find("\"step\":3,") != std::string::npos;
      },
      seconds{60}));
  const int victim = offset[0] == '+' ? 0 : 1;
  const testing::HostProcess rank = run.ranks_on(victim).at(0);
  const auto start = std::chrono::steady_clock::now();
  kill(rank.pid, SIGKILL);
  CHECK(doomed->wait(seconds{20}) == 137);
  INFO(doomed->err());
  CHECK_THAT(doomed->last_line(),
             Contains(fmt::format("rank {} ", victim)) && Contains(fmt::format(" on w{}", victim)));
  CHECK(run.nothing_is_left(seconds{20}));
  std::printf("F21 clock of w1 %s: launcher ended and everything gone after %.1f s\n",
              offset.c_str(),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace
}  // namespace dstrain
