// What `dstrain launch` finds out about its hosts before a rank starts: each problem is named with
// its host and remedy, for all hosts at once, and nothing is started.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::FleetRun;
using testing::Program;

constexpr seconds kPatience{120};

struct Ended {
  int code = -1;
  std::string out;
  std::string err;
  double seconds = 0;
};

Ended end_of(Program& program, FleetRun& run) {
  const auto start = std::chrono::steady_clock::now();
  const auto code = program.wait(kPatience);
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(run.nothing_is_left(seconds{10}));
  return {code.value_or(-1), program.out(), program.err(), took};
}

Ended launch(FleetRun& run,
             const std::vector<std::string>& more,
             const Program::Environment& environment = {}) {
  const auto program = run.launch(more, environment);
  Ended ended = end_of(*program, run);
  UNSCOPED_INFO(ended.out << ended.err);
  return ended;
}

const std::vector<std::string> kThreeSteps = {"--set", "training.steps=3"};

std::vector<std::string> three_steps(std::vector<std::string> more) {
  more.insert(more.end(), kThreeSteps.begin(), kThreeSteps.end());
  return more;
}

TEST_CASE("--check prints the plan and one line a host, and starts no rank",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(3, 1);
  const Ended text = launch(run, {"--check"});
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains("26,784") && Contains("w0") && Contains("10.77.1.3") &&
                           Contains("rank 0 listens on 10.77.1.1 port "));
  CHECK(run.tiny().steps() == 0);
  const Ended json = launch(run, {"--check", "--json"});
  const auto parsed = nlohmann::json::parse(json.out);
  CHECK(parsed["ranks"] == 3);
  CHECK(parsed["hosts"].size() == 3);
  CHECK(parsed["hosts"][2]["name"] == "w2");
  CHECK(parsed["problems"].empty());
  CHECK(parsed["master"]["address"] == "10.77.1.1");
  const Ended offline = launch(run, {"--check", "--offline"});
  CHECK(offline.code == 0);
  CHECK_THAT(offline.err, Contains("none of them was contacted"));
}

TEST_CASE("F16: a port that is taken on rank 0's host is reported with who holds it",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const Ended ended = launch(run, {"--master_port", "2222"});  // its sshd listens there
  CHECK(ended.code == 3);
  CHECK_THAT(ended.err, Contains("w0  master") &&
                            Contains("port 2222 of 10.77.1.1 is in use by pid") &&
                            Contains("(sshd)"));
  std::printf("F16 port taken: told after %.1f s\n", ended.seconds);
}

TEST_CASE("F25: hosts without dstrain, or with another build, are named; --copy-binary sends it",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  const auto by_launcher = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--agent-path", "/mnt/dstrain", "--launcher", launcher});
    return more;
  };
  FleetRun run(2, 1);
  const Ended missing = launch(run, by_launcher({}));
  CHECK(missing.code == 3);
  CHECK_THAT(missing.err, Contains("2 of 2 hosts cannot be used") &&
                              Contains("there is no dstrain at /mnt/dstrain") &&
                              Contains("--copy-binary"));
  std::printf("F25 no binary, %s: told after %.1f s\n", launcher.c_str(), missing.seconds);
  for (int i = 0; i < 2; ++i) {
    std::filesystem::copy_file(testing::dstrain_binary(), run.host(i).path("/mnt/dstrain"));
  }
  run.host(1).run("echo >> /mnt/dstrain");  // a byte more: another build
  const Ended other = launch(run, by_launcher({}));
  CHECK(other.code == 3);
  CHECK_THAT(other.err, Contains("1 of 2 hosts cannot be used") &&
                            Contains("w1  build  /mnt/dstrain is another build of dstrain"));
  const Ended copied = launch(run, three_steps(by_launcher({"--copy-binary"})));
  CHECK(copied.code == 0);
  CHECK_THAT(copied.err,
             Contains("w1: sending this build of dstrain") && !Contains("w0: sending this build"));
  std::printf("F25 binary sent, %s, three steps done, after %.1f s\n", launcher.c_str(),
              copied.seconds);
}

TEST_CASE("F26: more slots than cores are warned of", "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  const auto cores = std::thread::hardware_concurrency();
  if (cores > 32) {
    testing::skip(fmt::format("a run with more ranks than the {} cores of this machine", cores));
    return;
  }
  FleetRun run(1, static_cast<int>(cores) + 1);
  const Ended ended = launch(run, {"--check"});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.err, Contains("w0: ") && Contains("ranks will take turns on "));
}

TEST_CASE("F31: a host that does not answer is reported within the time to connect",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  const std::string launcher = GENERATE("libssh2", "openssh");
  FleetRun run(3, 1);
  run.cluster().drop_packets(run.host(1));
  const Ended ended = launch(run, {"--connect-timeout", "3", "--launcher", launcher});
  CHECK(ended.code == 3);
  CHECK_THAT(ended.err, Contains("1 of 3 hosts cannot be used") && Contains("w1  "));
  std::printf("F31 silent host, %s: told after %.1f s of 3 s to connect\n", launcher.c_str(),
              ended.seconds);
}

/// The run's files on the hosts' own disks instead of the shared one.
void move_to_own_disks(FleetRun& run) {
  run.cluster().launcher().run("cp -r " + run.path("") + " /mnt/own");
  for (int i = 0; i < run.cluster().size(); ++i)
    run.host(i).run("cp -r " + run.path("") + " /mnt/own");
}

TEST_CASE("F15: data and config that differ between hosts are reported with the odd host",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(3, 1);
  move_to_own_disks(run);
  const auto on_own_disks = [&](const std::string& more) {
    auto program =
        run.cluster().launch({testing::dstrain_binary(), "launch", "--hostfile", run.path("hosts"),
                              "/mnt/own/config.json", "--set", "data.train=\"/mnt/own/data/train\"",
                              "--set", "training.output_dir=\"/mnt/own/run\"", "--set", more});
    Ended ended = end_of(*program, run);
    UNSCOPED_INFO(ended.out << ended.err);
    return ended;
  };
  run.host(1).run("printf x | dd of=/mnt/own/data/train.idx bs=1 seek=40 conv=notrunc 2>/dev/null");
  run.host(2).run("rm /mnt/own/data/train.bin; echo >> /mnt/own/config.json");
  const Ended ended = on_own_disks("training.steps=3");
  CHECK(ended.code == 3);
  CHECK_THAT(ended.err,
             Contains("2 of 3 hosts cannot be used") && Contains("w1  files") &&
                 Contains("/mnt/own/data/train.idx is not the same as on the other hosts") &&
                 Contains("/mnt/own/config.json is not the same as on the other hosts") &&
                 Contains("/mnt/own/data/train.bin: No such file or directory"));
  std::printf("F15 other data: told after %.1f s\n", ended.seconds);
}

TEST_CASE("a host without the working folder, or where nothing can be written, is reported",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  for (testing::ClusterHost* host : {&run.host(0), &run.host(1), &run.cluster().launcher()})
    host->run("mkdir /mnt/shared");
  run.host(1).run("mount -t tmpfs -o ro none /mnt/shared");
  const Ended read_only = launch(run, {"--set", "training.output_dir=\"/mnt/shared/run\""});
  CHECK(read_only.code == 3);
  CHECK_THAT(read_only.err,
             Contains("w1  folders") && Contains("cannot write in /mnt/shared: Read-only"));

  run.cluster().launcher().run("mkdir /mnt/only-here");
  std::vector<std::string> argv = {"/bin/sh", "-c", "cd /mnt/only-here && exec \"$@\"", "sh"};
  for (const std::string& argument : run.arguments())
    argv.push_back(argument);
  const auto program = run.cluster().launch(argv);
  const Ended elsewhere = end_of(*program, run);
  INFO(elsewhere.err);
  CHECK(elsewhere.code == 3);
  CHECK_THAT(elsewhere.err, Contains("2 of 2 hosts cannot be used") &&
                                Contains("working folder /mnt/only-here: "));
}

TEST_CASE("ranks use the interface that is asked for; one that a host lacks is reported",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const Ended ended = launch(run, three_steps({"--interface", "eth0"}));
  CHECK(ended.code == 0);
  const Ended wrong = launch(run, {"--interface", "ib7"});
  CHECK(wrong.code == 3);
  CHECK_THAT(wrong.err, Contains("w1  interface") &&
                            Contains("there is no network interface ib7 with an address") &&
                            Contains("eth0 (10.77.1.2)"));
}

TEST_CASE("variables reach ranks of other hosts byte for byte, and the secret shows nowhere",
          "[cluster][preflight][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const std::string awkward = " 'a'\n\"$(touch /tmp/dstrain-pwned)\" ; `id` \\ --x";
  const auto program =
      run.launch({"--env", "AWKWARD=" + awkward, "--env", "ASKED"},
                 {{"ASKED", "yes"}, {"WANDB_API_KEY", "w b"}, {"UNASKED", "stays here"}});
  const bool started = run.tiny().reaches_step(3);
  INFO(program->err());
  REQUIRE(started);
  const testing::HostProcess rank = run.ranks_on(1).at(0);
  const std::string variables = run.host(1).read(fmt::format("/proc/{}/environ", rank.pid_on_host));
  CHECK_THAT(variables, Contains("AWKWARD=" + awkward + '\0') && Contains("ASKED=yes") &&
                            Contains("WANDB_API_KEY=w b") && !Contains("UNASKED"));
  CHECK_FALSE(std::filesystem::exists("/tmp/dstrain-pwned"));
  const std::size_t at = variables.find("DSTRAIN_TOKEN=");
  REQUIRE(at != std::string::npos);
  const std::string secret = variables.substr(at + 14, 64);
  for (const testing::HostProcess& process : run.processes())
    CHECK_THAT(process.command, !Contains(secret));
  CHECK_THAT(program->err() + program->out(), !Contains(secret));
  program->signal(SIGTERM);
  CHECK(program->wait(seconds{30}) == 143);
}

}  // namespace
}  // namespace dstrain
