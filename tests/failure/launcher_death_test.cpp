// The launcher is killed with SIGKILL: it cannot clean up, its ranks have to notice.
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "launcher/process/local_process.h"
#include "launcher/supervision/log_mux.h"
#include "launcher/supervision/supervisor.h"
#include "tests/harness/processes.h"
#include "tests/harness/skip.h"
#include "tests/harness/stopped_at_birth.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;

/// A process that supervises `job` with its own launcher, as `dstrain launch` does.
pid_t start_launcher(const launcher::Job& job) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  asio::io_context loop;
  launcher::LogMux log(job, {});
  launcher::LocalSpawner spawner(loop);
  launcher::Supervisor supervisor(loop, spawner, log, {});
  _exit(supervisor.run(job).exit_code);
}

TEST_CASE("ranks end when their launcher is killed", "[failure][launcher]") {
  const testing::TemporaryFolder folder;
  const auto says_pid = [&](const char* name, const char* script) {
    return "echo $$ > " + (folder.path() / name).string() + "; " + script;
  };
  const pid_t launcher = start_launcher(testing::shell_job({
      says_pid("idle", "exec sleep 100"),
      says_pid("reads_lifeline", "trap '' TERM; cat; exit 0"),  // only the lifeline ends this one
      says_pid("busy", "while true; do :; done"),
  }));
  std::vector<pid_t> ranks;
  for (const char* name : {"idle", "reads_lifeline", "busy"}) {
    REQUIRE(testing::becomes_true([&] { return folder.read(name).ends_with('\n'); },
                                  milliseconds{5000}));
    ranks.push_back(std::stoi(folder.read(name)));
    CHECK(testing::is_alive(ranks.back()));
  }
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const pid_t rank : ranks) {
    CHECK(testing::becomes_true([&] { return !testing::is_alive(rank); }, milliseconds{2000}));
  }
}

TEST_CASE("a child that never becomes the program is given up after a while, and named",
          "[failure][launcher]") {
  const testing::TemporaryFolder folder;
  const std::string screen = (folder.path() / "screen").string();
  constexpr milliseconds kPatience{700};
  const pid_t launcher = fork();
  if (launcher == 0) {
    testing::wait_to_be_traced();
    const FileDescriptor err(open(screen.c_str(), O_WRONLY | O_CREAT, 0600));
    const launcher::Job job = testing::shell_job({"exec sleep 100", "exec sleep 200"});
    asio::io_context loop;
    launcher::LogMux log(job, {.stderr_fd = err.get()});
    launcher::LocalSpawner spawner(loop, kPatience);
    launcher::Supervisor supervisor(loop, spawner, log, {});
    _exit(supervisor.run(job).exit_code);
  }
  const testing::StoppedAtBirth child = testing::stop_child_at_birth(launcher, 2);
  const auto start = std::chrono::steady_clock::now();
  if (!child.obstacle.empty()) {
    kill(launcher, SIGKILL);
    waitpid(launcher, nullptr, 0);
    return testing::skip(child.obstacle);
  }
  int status = 0;
  CHECK(testing::becomes_true([&] { return waitpid(launcher, &status, WNOHANG) == launcher; },
                              kPatience + milliseconds{5000}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << "never begun, limit 0.7 s: ended after " << took.count() << " s\n";
  CHECK(WEXITSTATUS(status) == launcher::kNotStarted);
  CHECK_THAT(
      folder.read("screen"),
      Catch::Matchers::Contains("error: rank 1 (local rank 1) on w0, pid " +
                                std::to_string(child.pid) +
                                ", cannot be started: sh -c exec sleep 200 has not begun") &&
          Catch::Matchers::Contains("s after its process was made: it is stopped (state T)"));
  CHECK_FALSE(testing::is_alive(child.pid));
}

}  // namespace
}  // namespace dstrain
