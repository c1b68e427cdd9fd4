// F41 on two hosts that share the run's folder. They have host names and process ids of their own;
// of the kernel, and so of its locks, they have one, unless w1 is given another boot id: then it
// takes w0 for another machine.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::FleetRun;

constexpr seconds kPatience{60};

/// Wherever a shell starts it.
std::string program() {
  return std::filesystem::absolute(testing::dstrain_binary());
}

/// One rank, started on that host by hand; its output and exit code are in `name`.
void start(FleetRun& run, int host, const std::string& name, int steps) {
  run.host(host).run(fmt::format(
      "(cd / && {} train {} --set training.steps={} > {} 2>&1 < /dev/null; echo code=$? >> {}) "
      "> /dev/null 2>&1 &",
      program(), run.path("config.json"), steps, run.path(name), run.path(name)));
}

bool has_ended(FleetRun& run, const std::string& name) {
  return run.tiny().read(name).find("code=") != std::string::npos;
}

std::string output_of(FleetRun& run, const std::string& name) {
  CHECK(testing::becomes_true([&] { return has_ended(run, name); }, kPatience));
  return run.tiny().read(name);
}

/// The shells that started them do not count.
std::vector<testing::HostProcess> ranks_on(FleetRun& run, int host) {
  std::vector<testing::HostProcess> ranks = run.ranks_on(host);
  std::erase_if(ranks, [](const testing::HostProcess& process) {
    return !process.command.starts_with(program());
  });
  return ranks;
}

void kill_ranks_on(FleetRun& run, int host) {
  for (const testing::HostProcess& rank : ranks_on(run, host))
    kill(rank.pid, SIGKILL);
  CHECK(testing::becomes_true([&] { return ranks_on(run, host).empty(); }, kPatience));
}

TEST_CASE("F41: a folder that two hosts share belongs to one run", "[cluster][failure][owner]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  constexpr int kLong = 1'000'000;
  start(run, 0, "first", kLong);
  REQUIRE(run.tiny().reaches_step(20));
  start(run, 1, "second", kLong);
  CHECK_THAT(output_of(run, "second"), Contains("code=3") && Contains("on host w0 (user root)"));

  // A dead run's lock is free at once, on whichever host it ran.
  kill_ranks_on(run, 0);
  const auto begin = std::chrono::steady_clock::now();
  start(run, 1, "third", 50);
  CHECK_THAT(output_of(run, "third"), Contains("finished at step 50") && Contains("code=0"));
  CHECK(std::chrono::steady_clock::now() - begin < seconds{10});

  // Both at the same moment.
  std::filesystem::remove_all(run.path("run"));
  std::thread other([&] { start(run, 1, "fifth", kLong); });
  start(run, 0, "fourth", kLong);
  other.join();
  REQUIRE(run.tiny().reaches_step(20));
  // At step 20 the loser may still be on its way out: who lost, its exit code tells.
  CHECK(testing::becomes_true([&] { return has_ended(run, "fourth") || has_ended(run, "fifth"); },
                              kPatience));
  const bool fourth_runs = !has_ended(run, "fourth");
  CHECK_THAT(output_of(run, fourth_runs ? "fifth" : "fourth"), Contains("code=3"));
  CHECK(ranks_on(run, fourth_runs ? 0 : 1).size() == 1);
  CHECK(ranks_on(run, fourth_runs ? 1 : 0).empty());
}

TEST_CASE("F41: a run that died on another machine is watched for its heartbeat, then replaced",
          "[cluster][failure][owner][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  run.host(1).write("/mnt/boot_id", "11111111-2222-3333-4444-555555555555\n");
  run.host(1).run("mount --bind /mnt/boot_id /proc/sys/kernel/random/boot_id");
  start(run, 0, "first", 1'000'000);
  REQUIRE(run.tiny().reaches_step(20));
  kill_ranks_on(run, 0);
  std::string status;
  CHECK(testing::becomes_true(  // the kernel ends a process, then closes its files
      [&] {
        status = run.host(1).run(program() + " status " + run.path("run"));
        return status.find("state       unknown: ") != std::string::npos;
      },
      kPatience));
  CHECK_THAT(status, Contains("on host w0"));
  const auto begin = std::chrono::steady_clock::now();
  start(run, 1, "second", 50);
  CHECK_THAT(output_of(run, "second"), Contains("watching its heartbeat for 30 s") &&
                                           Contains("no heartbeat for 30 s") &&
                                           Contains("finished at step 50") && Contains("code=0"));
  CHECK(std::chrono::steady_clock::now() - begin >= seconds{30});
}

}  // namespace
}  // namespace dstrain
