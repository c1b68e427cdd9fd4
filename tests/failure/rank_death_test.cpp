// dstrain itself, training, while ranks and launchers are killed and interrupted.
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "tests/failure/tiny_run.h"
#include "tests/harness/injected_code.h"
#include "tests/harness/memory_cgroup.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::becomes_true;
using testing::is_alive;
using testing::Program;
using testing::TinyRun;

constexpr seconds kStopLimit{10};

bool all_gone(const std::vector<pid_t>& pids, milliseconds patience) {
  return becomes_true(
      [&] { return std::none_of(pids.begin(), pids.end(), [](pid_t p) { return is_alive(p); }); },
      patience);
}

TEST_CASE("a rank killed in training ends the job, which names it", "[failure][slow]") {
  const TinyRun run;
  const size_t victim = GENERATE(0, 1);
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  const auto start = std::chrono::steady_clock::now();
  kill(ranks[victim], SIGKILL);
  CHECK(launch.wait(kStopLimit) == 137);
  std::cout << "SIGKILL of rank " << victim << ": the job is gone after "
            << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()
            << " s\n";
  INFO(launch.err());
  CHECK_THAT(launch.last_line(),
             Contains("rank " + std::to_string(victim) + " (local rank " + std::to_string(victim) +
                      ") on localhost, pid " + std::to_string(ranks[victim]) +
                      ", was killed by SIGKILL (signal 9)"));
  CHECK(all_gone(ranks, milliseconds{0}));
}

TEST_CASE("a rank that ends early with success is a failure, and named", "[failure][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  if (const auto obstacle = testing::make_it_succeed(ranks[1])) {
    testing::skip(*obstacle);
    return;
  }
  CHECK(launch.wait(kStopLimit) == 1);
  INFO(launch.err());
  CHECK_THAT(launch.last_line(), Contains("rank 1 (local rank 1) on localhost, pid ") &&
                                     Contains("ended with exit code 0 before the others"));
  CHECK(all_gone(ranks, milliseconds{0}));
}

/// The kernel chooses it before all others.
void offer_to_oom_killer(pid_t pid) {
  std::ofstream("/proc/" + std::to_string(pid) + "/oom_score_adj") << 1000;
}

TEST_CASE("a rank that the kernel kills for memory is said to be, with the limit",
          "[failure][slow]") {
  constexpr std::int64_t kLimitBytes = 160 << 20;
  const testing::MemoryCgroup cgroup(kLimitBytes);
  if (!cgroup.obstacle().empty()) {
    testing::skip("no memory cgroup can be made: " + cgroup.obstacle());
    return;
  }
  const TinyRun run;
  std::string command = cgroup.enter() + "exec";
  for (const std::string& word : run.launch({"--no-memory-check"})) {
    command += " '" + word + "'";
  }
  Program launch({"/bin/sh", "-c", command});
  // A rank that asks for more than there is is told so and ends by itself: memory has to become
  // scarce once it has what it asked for.
  REQUIRE(run.reaches_step(3));
  for (const pid_t rank : launch.children()) {
    offer_to_oom_killer(rank);
  }
  const pid_t neighbour = cgroup.start_eater(kLimitBytes);
  CHECK(launch.wait(seconds{20}) == 137);
  kill(neighbour, SIGKILL);
  waitpid(neighbour, nullptr, 0);
  INFO(launch.err());
  CHECK_THAT(launch.last_line(),
             Contains(" on localhost, pid ") &&
                 Contains("was killed by SIGKILL (signal 9): killed by the kernel's out-of-memory "
                          "killer: ") &&
                 Contains("dstrain_test_") && Contains("160.0 MiB"));
}

TEST_CASE("a rank that is stopped does not keep a job from being ended", "[failure][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  kill(ranks[0], SIGSTOP);
  kill(ranks[1], SIGKILL);
  CHECK(launch.wait(kStopLimit) == 137);
  CHECK_THAT(launch.last_line(), Contains("rank 1 "));
  CHECK(all_gone(ranks, milliseconds{0}));
}

TEST_CASE("a signal to the launcher saves a checkpoint, from which the run continues",
          "[failure][slow]") {
  const TinyRun run;
  const auto [signal, code] = GENERATE(table<int, int>({{SIGINT, 130}, {SIGTERM, 143}}));
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  launch.signal(signal);
  CHECK(launch.wait(kStopLimit) == code);
  INFO(launch.err());
  CHECK(all_gone(ranks, milliseconds{0}));
  CHECK_FALSE(run.read("run/checkpoints/latest").empty());

  const std::int64_t before = run.steps();
  Program again(run.launch({"--set", "training.steps=" + std::to_string(before + 5)}));
  CHECK(again.wait(seconds{30}) == 0);
  INFO(again.err());
  CHECK(run.steps() == before + 5);
}

TEST_CASE("ranks in training end when their launcher is killed", "[failure][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  launch.signal(SIGKILL);
  CHECK(launch.wait(seconds{1}) == 137);
  CHECK(all_gone(ranks, seconds{15}));
}

TEST_CASE("a stopped rank, too, ends when its launcher is killed", "[failure][slow]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(3));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGSTOP);
  launch.signal(SIGKILL);
  CHECK(launch.wait(seconds{1}) == 137);
  CHECK(all_gone(ranks, seconds{15}));
}

TEST_CASE("a port in use is found before anything starts", "[failure]") {
  const TinyRun run;
  const FileDescriptor holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(holder.get(), generic, size) == 0);
  REQUIRE(listen(holder.get(), 1) == 0);
  REQUIRE(getsockname(holder.get(), generic, &size) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Program launch(run.launch({"--master_port", port}));
  CHECK(launch.wait(seconds{10}) == 3);
  CHECK_THAT(launch.err(),
             Contains("port " + port) && Contains("is in use by pid " + std::to_string(getpid())));
  CHECK_FALSE(std::filesystem::exists(run.path("run")));
}

struct Refused {
  std::vector<std::string> arguments;
  int exit_code;
  std::string message;
};

TEST_CASE("what is wrong with a launch is said in one line before anything starts", "[failure]") {
  const TinyRun run;
  std::ofstream(run.path("bad_hosts")) << "localhost slots=2\nw1 slots=two\n";
  std::ofstream(run.path("far_hosts")) << "localhost slots=1\nw1.example slots=1\n";
  const auto refused = std::vector<Refused>{
      {{"--hostfile", run.path("bad_hosts")}, 2, "bad_hosts:2: \"w1 slots=two\""},
      {{"--hostfile", run.path("absent")}, 2, "absent"},
      {{"--hostfile", run.path("far_hosts")}, 3, "w1.example  resolve"},
      {{"--set", "training.stepz=3"}, 2, "stepz"},
      {{"--set", "train_batch_size=3"}, 2, "train_batch_size"},
      {{"--set", "data.train=\"/nowhere/data\""}, 2, "/nowhere/data"},
      {{"--no-such-flag"}, 2, "--no-such-flag"},
      {{"--master_port", "99999"}, 2, "master_port"},
  };
  for (const Refused& wrong : refused) {
    std::vector<std::string> argv = {testing::dstrain_binary(), "launch", run.path("config.json")};
    const bool has_hostfile = wrong.arguments[0] == "--hostfile";
    if (!has_hostfile) argv.insert(argv.end(), {"--num_gpus", "2"});
    argv.insert(argv.end(), wrong.arguments.begin(), wrong.arguments.end());
    Program launch(argv);
    INFO(wrong.message << "\n" << launch.err());
    CHECK(launch.wait(seconds{10}) == wrong.exit_code);
    CHECK_THAT(launch.err(), Contains(wrong.message));
  }
}

TEST_CASE("a command that does not exist is named", "[failure]") {
  Program wrong({testing::dstrain_binary(), "lanch", "config.json"});
  CHECK(wrong.wait(seconds{10}) == 2);
  CHECK_THAT(wrong.err(), Contains("there is no command \"lanch\""));
}

TEST_CASE("the token is on no command line", "[failure]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(1));
  for (const pid_t rank : launch.children()) {
    std::ifstream environ_file("/proc/" + std::to_string(rank) + "/environ");
    const std::string variables(std::istreambuf_iterator<char>(environ_file), {});
    const std::string key = "DSTRAIN_TOKEN=";
    const size_t at = variables.find(key);
    REQUIRE(at != std::string::npos);
    const std::string token = variables.substr(at + key.size(), 64);
    CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
    std::ifstream cmdline("/proc/" + std::to_string(rank) + "/cmdline");
    const std::string arguments(std::istreambuf_iterator<char>(cmdline), {});
    CHECK_THAT(arguments, Contains("train") && !Contains(token));
  }
  launch.signal(SIGINT);
  CHECK(launch.wait(kStopLimit) == 130);
}

}  // namespace
}  // namespace dstrain
