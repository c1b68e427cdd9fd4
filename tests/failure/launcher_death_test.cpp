// The launcher is killed with SIGKILL: it cannot clean up, its ranks have to notice.
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/local_process.h"
#include "launcher/log_mux.h"
#include "launcher/supervisor.h"
#include "tests/harness/processes.h"

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

}  // namespace
}  // namespace dstrain
