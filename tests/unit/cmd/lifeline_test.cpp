// Each case plays in a process of its own, since stdin, signals and the process group are its.
#include "cmd/rank/lifeline.h"

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/rank/stop_signal.h"
#include "tests/harness/processes.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;

/// A rank that runs `body` and exits with what it returns. Destroying this ends its lifeline.
class Rank {
 public:
  explicit Rank(const std::function<int()>& body) {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      dup2(ends[0], STDIN_FILENO);
      close(ends[0]);
      close(ends[1]);
      _exit(body());
    }
    close(ends[0]);
    lifeline = ends[1];
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    cut();
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  void cut() {
    if (lifeline >= 0) close(lifeline);
    lifeline = -1;
  }
  /// The exit code as in a shell; -1 if the process does not end within two seconds.
  int wait() const {
    int status = 0;
    const bool ended = testing::becomes_true([&] { return waitpid(pid, &status, WNOHANG) == pid; },
                                             milliseconds{2000});
    if (!ended) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t pid = -1;
  int lifeline = -1;
};

/// Looks at the number as the training loop does.
int wait_for_stop(const StopSignal& stop) {
  testing::becomes_true([&] { return stop.number() != 0; }, milliseconds{5000});
  return stop.number();
}

TEST_CASE("the end of the lifeline asks the rank to stop", "[cmd][lifeline]") {
  Rank rank([] {
    StopSignal stop;
    const Lifeline lifeline(stop);
    return wait_for_stop(stop);
  });
  rank.cut();
  CHECK(rank.wait() == SIGTERM);
}

TEST_CASE("a rank that does not stop in time ends itself and its children", "[cmd][lifeline]") {
  const testing::TemporaryFolder folder;
  Rank rank([&]() -> int {
    StopSignal stop;
    const Lifeline lifeline(stop, milliseconds{100});
    const std::string script = "sleep 100 & echo $! > " + (folder.path() / "child").string();
    if (std::system(script.c_str()) != 0) return 1;
    while (true)
      pause();
  });
  REQUIRE(testing::becomes_true([&] { return folder.read("child").ends_with('\n'); },
                                milliseconds{2000}));
  const pid_t child = std::stoi(folder.read("child"));
  CHECK(testing::is_alive(child));
  rank.cut();
  CHECK(rank.wait() == 128 + SIGKILL);
  CHECK(testing::becomes_true([&] { return !testing::is_alive(child); }, milliseconds{1000}));
}

TEST_CASE("a rank that finishes leaves its lifeline at once", "[cmd][lifeline]") {
  Rank rank([] {
    StopSignal stop;
    { const Lifeline lifeline(stop); }
    return 7;
  });
  CHECK(rank.wait() == 7);
}

TEST_CASE("the first signal asks, the second one ends", "[cmd][stop_signal]") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  const testing::TemporaryFolder folder;
  const std::string mark = (folder.path() / "asked").string();
  Rank rank([&]() -> int {
    StopSignal stop;
    std::ofstream(mark + "_ready") << "\n";
    std::ofstream(mark) << wait_for_stop(stop) << "\n";
    while (true)
      pause();
  });
  REQUIRE(testing::becomes_true([&] { return !folder.read("asked_ready").empty(); },
                                milliseconds{2000}));
  kill(rank.pid, signal);
  REQUIRE(testing::becomes_true([&] { return !folder.read("asked").empty(); }, milliseconds{2000}));
  CHECK(folder.read("asked") == std::to_string(signal) + "\n");
  kill(rank.pid, signal);
  CHECK(rank.wait() == 128 + signal);
}

TEST_CASE("a signal after the end of the lifeline is the first one, not the second",
          "[cmd][lifeline]") {
  // When the launcher dies, both reach the rank at the same moment.
  const testing::TemporaryFolder folder;
  const std::string mark = (folder.path() / "asked").string();
  Rank rank([&]() -> int {
    StopSignal stop;
    const Lifeline lifeline(stop);
    wait_for_stop(stop);
    std::ofstream(mark) << "\n";
    std::this_thread::sleep_for(milliseconds{300});  // saving
    return 5;
  });
  rank.cut();
  REQUIRE(testing::becomes_true([&] { return !folder.read("asked").empty(); }, milliseconds{2000}));
  kill(rank.pid, SIGTERM);
  CHECK(rank.wait() == 5);
}

}  // namespace
}  // namespace dstrain
