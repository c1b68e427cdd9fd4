// A run over several hosts while its ranks, agents, sshds, links and launcher are killed, stopped
// and cut. What is told, how soon, and that nothing is left anywhere. Numbers Fn are those of the
// table of faults in the README.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FleetRun;
using testing::HostProcess;
using testing::is_alive;
using testing::Program;

// The promised limit; a loaded machine gets the same again.
constexpr seconds kStopLimit{10};
constexpr seconds kSlack{10};

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The flags for this program's own SSH client, or OpenSSH's.
std::vector<std::string> by(const std::string& launcher) {
  return {"--launcher", launcher};
}

/// A run over `hosts` that has reached its third step.
struct Running {
  explicit Running(int hosts, int slots = 1, const std::vector<std::string>& more = {})
      : run(hosts, slots), launch(run.launch(more)) {
    const bool started = run.tiny().reaches_step(3);
    INFO(launch->err());
    REQUIRE(started);
  }
  /// The launcher's exit code; the times are printed.
  int await_end(const std::string& fault, milliseconds limit) {
    const auto code = launch->wait(limit + kSlack);
    const double told = watch.seconds();
    UNSCOPED_INFO(launch->err());
    REQUIRE(code);
    CHECK(run.nothing_is_left(limit + kSlack));
    UNSCOPED_INFO("left:\n" << run.left());
    std::printf("%s: launcher ended after %.1f s, everything gone after %.1f s\n", fault.c_str(),
                told, watch.seconds());
    return *code;
  }
  FleetRun run;
  std::unique_ptr<Program> launch;
  Stopwatch watch;
};

TEST_CASE("F1: a rank killed on another host ends the job everywhere, and is named",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  Running job(3, 2, by(launcher));
  const HostProcess victim = job.run.ranks_on(1).at(0);
  job.watch = {};
  kill(victim.pid, SIGKILL);
  CHECK(job.await_end("F1 rank killed, " + launcher, kStopLimit) == 137);
  CHECK_THAT(job.launch->last_line(), Contains(" on w1, pid " + std::to_string(victim.pid_on_host) +
                                               ", was killed by SIGKILL (signal 9)") &&
                                          Matches(".*error: rank [23] \\(local rank [01]\\).*"));
}

TEST_CASE("F4: a host whose power fails is named, and the others stop",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  Running job(3, 1, by(launcher));
  job.watch = {};
  job.run.host(1).power_off();
  const auto code = job.launch->wait(kStopLimit + kSlack);
  const double told = job.watch.seconds();
  INFO(job.launch->err());
  REQUIRE(code);
  CHECK(*code != 0);
  CHECK_THAT(job.launch->last_line(), Contains("rank 1 (local rank 0) on w1"));
  std::printf("F4 power off, %s: launcher ended after %.1f s\n", launcher.c_str(), told);
  CHECK(testing::becomes_true(
      [&] { return job.run.ranks_on(0).empty() && job.run.ranks_on(2).empty(); }, kStopLimit));
}

TEST_CASE("F5, F22: a host that is cut off is named, and its ranks end by themselves",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  std::string launcher = "libssh2";
  bool unplugs = true;
  SECTION("its cable is pulled") {}
  SECTION("packets vanish") {
    unplugs = false;
    launcher = GENERATE("libssh2", "openssh");
  }
  Running job(3, 1, by(launcher));
  job.watch = {};
  if (unplugs) {
    job.run.cluster().unplug(job.run.host(1));
  } else {
    job.run.cluster().drop_packets(job.run.host(1));
  }
  // The agent gives the launcher 8 s, and its ranks 5 s to end.
  CHECK(job.await_end((unplugs ? "F5 cable pulled, " : "F22 packets dropped, ") + launcher,
                      seconds{15}) != 0);
  CHECK_THAT(job.launch->last_line(), Contains("rank 1 (local rank 0) on w1"));
}

TEST_CASE("F5: sshd killed with its sessions ends the job, and the agent its ranks",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  Running job(2, 1, by(launcher));
  job.watch = {};
  job.run.host(1).kill_sshd();
  CHECK(job.await_end("F5 sshd killed, " + launcher, seconds{15}) != 0);
  CHECK_THAT(job.launch->last_line(), Contains("rank 1 (local rank 0) on w1"));
}

TEST_CASE("an agent that is killed or stopped loses its host", "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  Running job(2);
  const HostProcess agent = job.run.agent_on(1);
  job.watch = {};
  kill(agent.pid, signal);
  const auto code = job.launch->wait(seconds{20} + kSlack);
  std::printf("agent gets signal %d: launcher ended after %.1f s\n", signal, job.watch.seconds());
  INFO(job.launch->err());
  REQUIRE(code);
  CHECK(*code != 0);
  CHECK_THAT(job.launch->last_line(), Contains("rank 1 (local rank 0) on w1"));
  kill(agent.pid, SIGCONT);
  CHECK(job.run.nothing_is_left(seconds{15} + kSlack));
  INFO(job.run.left());
}

TEST_CASE("F6: interrupted once, all hosts save and end; twice, they end at once",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  Running job(2);
  job.watch = {};
  SECTION("once") {
    job.launch->signal(SIGINT);
    CHECK(job.await_end("F6 SIGINT", kStopLimit) == 130);
    CHECK_FALSE(job.run.tiny().read("run/checkpoints/latest").empty());
  }
  SECTION("twice, while a rank is stopped") {
    kill(job.run.ranks_on(1).at(0).pid, SIGSTOP);
    job.launch->signal(SIGTERM);
    testing::becomes_true(
        [&] { return job.launch->err().find("once more kills them now") != std::string::npos; },
        kStopLimit);
    job.launch->signal(SIGTERM);
    CHECK(job.await_end("F6 SIGTERM twice", kStopLimit) != 0);
  }
}

TEST_CASE("F7: when the launcher is killed, ranks and agents end by themselves",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  Running job(3, 1, by(launcher));
  job.watch = {};
  job.launch->signal(SIGKILL);
  CHECK(job.await_end("F7 launcher killed, " + launcher, seconds{15}) == 137);
}

TEST_CASE("F30: a job that is killed leaves another one on the same hosts alone",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  Running job(2);
  const std::vector<HostProcess> first = job.run.processes();
  const testing::TinyRun other;
  auto argv = job.run.arguments(
      {"--set", "training.steps=300", "--set", "training.output_dir=" + other.path("run")});
  const auto second = job.run.cluster().launch(argv);
  REQUIRE(other.reaches_step(3));
  for (const HostProcess& process : first) {
    if (process.command.find("dstrain train") != std::string::npos) kill(process.pid, SIGKILL);
  }
  CHECK(job.launch->wait(kStopLimit + kSlack) == 137);
  const auto code = second->wait(seconds{120});
  INFO(second->err());
  REQUIRE(code);
  CHECK(*code == 0);
  CHECK(testing::losses_in(other.read("run/metrics.jsonl")).size() == 300);
  CHECK(job.run.nothing_is_left(kStopLimit));
}

TEST_CASE("F33: ranks go on while their launcher stands still", "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  Running job(2);
  const auto steps_in_4_s = [&] {
    const std::int64_t before = job.run.tiny().steps();
    std::this_thread::sleep_for(seconds{4});
    return job.run.tiny().steps() - before;
  };
  const std::int64_t with = steps_in_4_s();
  job.launch->signal(SIGSTOP);
  const std::int64_t without = steps_in_4_s();
  job.launch->signal(SIGCONT);
  CHECK(without > with / 4);
  std::this_thread::sleep_for(seconds{1});
  CHECK_FALSE(job.launch->wait(seconds{0}));  // it neither ended, nor called its hosts silent
  job.launch->signal(SIGINT);
  CHECK(job.await_end("F33 launcher stopped for 4 s, then interrupted", kStopLimit) == 130);
  std::printf("F33: %lld steps in 4 s with the launcher, %lld while it stands still\n",
              static_cast<long long>(with), static_cast<long long>(without));
}

TEST_CASE("a host that is lost is reached again by a restart, with the same losses in the end",
          "[cluster][failure][slow]") {
  if (testing::no_cluster_here()) return;
  const std::vector<std::string> flags = {"--set", "training.steps=300", "--set",
                                          "checkpoint.interval=20"};
  std::vector<std::string> with_restarts = flags;
  with_restarts.insert(with_restarts.end(), {"--launcher", "openssh"});
  with_restarts.insert(with_restarts.end(), {"--max-restarts", "3"});
  Running job(2, 1, with_restarts);
  REQUIRE(job.run.tiny().reaches_step(50));
  kill(job.run.agent_on(1).pid, SIGKILL);
  const auto code = job.launch->wait(seconds{120});
  INFO(job.launch->err());
  REQUIRE(code);
  CHECK(*code == 0);
  CHECK_THAT(job.launch->err(), Contains("restart 1 of 3: "));
  FleetRun undisturbed(2, 1);
  const auto again = undisturbed.launch(flags);
  REQUIRE(again->wait(seconds{120}) == 0);
  CHECK(testing::losses_in(job.run.tiny().read("run/metrics.jsonl")) ==
        testing::losses_in(undisturbed.tiny().read("run/metrics.jsonl")));
}

}  // namespace
}  // namespace dstrain
