// A run over several hosts on which things are killed all the time: ranks, agents, connections,
// whole hosts. It starts again from its newest checkpoint on the hosts that answer, and ends with
// the numbers of a run that nothing happened to.
#include <chrono>
#include <csignal>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FleetRun;
using testing::Program;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 200;

std::vector<std::string> flags_of(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--set", fmt::format("training.steps={}", kSteps), "--set",
                                    "checkpoint.interval=10"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// The losses as they were printed, digit for digit.
std::vector<std::string> losses_of(const std::string& metrics) {
  std::vector<std::string> losses;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kKey = "\"loss\":";
    const size_t at = line.find(kKey) + kKey.size();
    losses.push_back(line.substr(at, line.find_first_of(",}", at) - at));
  }
  return losses;
}

int restarts_in(const std::string& log) {
  int restarts = 0;
  for (size_t at = log.find("restart "); at != std::string::npos; at = log.find("restart ", at + 1))
    restarts += log.substr(at, 24).find(" of 50: ") != std::string::npos ? 1 : 0;
  return restarts;
}

/// The same layout on one machine, undisturbed.
std::vector<std::string> undisturbed_losses(const FleetRun& run, int ranks) {
  const testing::TinyRun alone;
  std::vector<std::string> argv = {testing::dstrain_binary(), "launch", "--num_gpus",
                                   std::to_string(ranks), run.path("config.json")};
  for (const std::string& flag : flags_of({"--set", "training.output_dir=" + alone.path("run")}))
    argv.push_back(flag);
  Program straight(argv);
  REQUIRE(straight.wait(seconds{100}) == 0);
  return losses_of(alone.read("run/metrics.jsonl"));
}

void kill_one_of(const std::vector<testing::HostProcess>& processes, size_t pick) {
  if (!processes.empty()) kill(processes[pick % processes.size()].pid, SIGKILL);
}

TEST_CASE(
    "a run whose ranks, agents, connections and hosts are killed ends as if nothing had "
    "happened",
    "[cluster][launch][slow]") {
  if (testing::no_cluster_here()) return;
  constexpr int kHosts = 3;
  FleetRun run(kHosts, 1);
  const auto start = Clock::now();
  const auto launch =
      run.launch(flags_of({"--max-restarts", "50", "--max-restarts-without-progress", "50"}));
  std::mt19937 random(11);
  constexpr int kBlows = 6;
  int done_to_it = 0;
  for (std::string last; !launch->wait(milliseconds{20 + random() % 100});) {
    if (Clock::now() - start > seconds{300}) FAIL(launch->err());
    // Between two blows there is time for a checkpoint.
    const std::string newest = run.tiny().read("run/checkpoints/latest");
    if (newest == last || done_to_it == kBlows) continue;
    last = newest;
    testing::ClusterHost& host = run.host(static_cast<int>(random() % kHosts));
    switch (done_to_it % 4) {
      case 0:
        kill_one_of(host.processes(), random());  // a rank, an agent, or sshd's session
        break;
      case 1:
        kill_one_of(run.ranks_on(static_cast<int>(random() % kHosts)), 0);
        break;
      case 2:
        host.kill_sshd();
        host.start_sshd();
        break;
      case 3:
        if (done_to_it > 3) break;  // costs a silence; once will do
        run.cluster().unplug(host);
        host.kill_everything();
        host.start_sshd();
        run.cluster().reconnect(host);
    }
    ++done_to_it;
  }
  INFO(launch->err());
  CHECK(launch->wait(milliseconds{0}) == 0);
  const int restarts = restarts_in(launch->err());
  WARN(fmt::format("{} steps over {} hosts: {} blows, {} restarts, {:.1f} s", kSteps, kHosts,
                   done_to_it, restarts,
                   std::chrono::duration<double>(Clock::now() - start).count()));
  CHECK(restarts >= 1);
  CHECK(run.nothing_is_left(seconds{10}));
  CHECK(losses_of(run.tiny().read("run/metrics.jsonl")) == undisturbed_losses(run, kHosts));
}

}  // namespace
}  // namespace dstrain
