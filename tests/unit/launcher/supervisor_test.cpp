// Real processes, shell scripts in place of ranks. Times are shortened; what counts is who is
// blamed, with which code, and that nothing is left.
#include "launcher/supervision/supervisor.h"

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/usable_cores.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/local_process.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::shell_job;

constexpr int kPeerLost = 14;
constexpr milliseconds kKillGrace{1000};

struct Outcome {
  int exit_code = 0;
  milliseconds took{};
  std::string out;
  std::string err;
  [[nodiscard]] std::string last_line() const {
    const size_t end = err.find_last_not_of('\n');
    const size_t begin = err.rfind('\n', end);
    return err.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
  }
};

struct Signals {
  std::vector<int> numbers;  ///< to this process, 300 ms apart
};

Outcome run(const Job& job,
            const Signals& signals = {},
            milliseconds early_exit_grace = milliseconds{30'000}) {
  testing::TemporaryFolder folder;
  const FileDescriptor out(open((folder.path() / "out").c_str(), O_RDWR | O_CREAT, 0600));
  const FileDescriptor err(open((folder.path() / "err").c_str(), O_RDWR | O_CREAT, 0600));
  asio::io_context loop;
  LogMux log(job, {.error_prefix = "app: error: ", .stdout_fd = out.get(), .stderr_fd = err.get()});
  LocalSpawner spawner(loop);
  Supervisor supervisor(
      loop, spawner, log,
      {.kill_grace = kKillGrace,
       .early_exit_grace = early_exit_grace,
       .peer_lost_code = kPeerLost,
       .describe_exit_code = [](int code) { return code == 7 ? "sevenfold" : ""; }});
  std::vector<asio::steady_timer> timers;
  for (size_t i = 0; i < signals.numbers.size(); ++i) {
    timers.emplace_back(loop, milliseconds{300} * (i + 1));
    timers.back().async_wait([number = signals.numbers[i]](const asio::error_code& error) {
      if (!error) kill(getpid(), number);
    });
  }
  const auto start = std::chrono::steady_clock::now();
  const int exit_code = supervisor.run(job).exit_code;
  const auto took =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  return {exit_code, took, folder.read("out"), folder.read("err")};
}

/// Every number in the text that stands alone in a line after "pid=".
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  const std::string key = "pid=";
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    pids.push_back(std::stoi(text.substr(at + key.size())));
  }
  return pids;
}

TEST_CASE("a job whose ranks all succeed succeeds, silently", "[launcher][supervisor]") {
  const Outcome outcome = run(shell_job({"exit 0", "echo result"}));
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out == "[w0:1] result\n");
  CHECK(outcome.err.empty());
}

TEST_CASE("a rank that fails gives its exit code, its name and its last words",
          "[launcher][supervisor]") {
  const Outcome outcome =
      run(shell_job({"exec sleep 100", "echo pid=$$; echo too bad >&2; exit 7"}));
  CHECK(outcome.exit_code == 7);
  REQUIRE(pids_in(outcome.out).size() == 1);
  CHECK_THAT(outcome.last_line(),
             StartsWith("[launch] ") &&
                 EndsWith(" error: rank 1 (local rank 1) on w0, pid " +
                          std::to_string(pids_in(outcome.out)[0]) +
                          ", ended with exit code 7 (sevenfold); its last words: too bad"));
}

TEST_CASE("a cause that several ranks report is shown once", "[launcher][supervisor]") {
  const std::string fail = "echo app: error: no such file >&2; exit 7";
  const Outcome outcome = run(shell_job({fail, fail, fail}));
  CHECK(outcome.exit_code == 7);
  const std::string sentence = "no such file";
  CHECK(outcome.err.find(sentence) == outcome.err.rfind(sentence));
  CHECK_THAT(outcome.last_line(), Contains(", ended with exit code 7 (sevenfold)") &&
                                      EndsWith("; ranks 0-2 said the same"));
}

TEST_CASE("a rank killed by a signal ends the job with 128 + the signal",
          "[launcher][supervisor]") {
  const auto [signal, name] = GENERATE(table<int, std::string>({{SIGKILL, "SIGKILL (signal 9)"},
                                                                {SIGSEGV, "SIGSEGV (signal 11)"},
                                                                {SIGTERM, "SIGTERM (signal 15)"}}));
  const Outcome outcome =
      run(shell_job({"exec sleep 100", "ulimit -c 0; kill -" + std::to_string(signal) + " $$"}));
  CHECK(outcome.exit_code == 128 + signal);
  CHECK_THAT(outcome.last_line(), Contains("rank 1 ") && Contains("was killed by " + name));
  CHECK(outcome.took < kKillGrace);  // blame_window, and no wait for the grace
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace", "[launcher][supervisor]") {
  const Outcome outcome = run(shell_job(
      {"trap '' TERM; echo pid=$$; while true; do sleep 0.05; done", "sleep 0.1; exit 3"}));
  CHECK(outcome.exit_code == 3);
  CHECK(outcome.took > kKillGrace);
  CHECK(outcome.took < 3 * kKillGrace);
  REQUIRE(pids_in(outcome.out).size() == 1);
  CHECK_FALSE(testing::is_alive(pids_in(outcome.out)[0]));
}

TEST_CASE("whoever only lost a peer is not blamed before the peer", "[launcher][supervisor]") {
  SECTION("the peer is killed, and seen a moment later") {
    const Outcome outcome = run(shell_job({"exit 14", "sleep 0.08; kill -9 $$", "exec sleep 100"}));
    CHECK(outcome.exit_code == 137);
    CHECK_THAT(outcome.last_line(), Contains("rank 1 "));
  }
  SECTION("the peer takes long to end with its own error") {
    const Outcome outcome = run(shell_job({"exit 14", "trap '' TERM; sleep 0.4; exit 5"}));
    CHECK(outcome.exit_code == 5);
    CHECK_THAT(outcome.last_line(), Contains("rank 1 "));
  }
  SECTION("an exit code of the same moment yields to a signal") {
    const Outcome outcome = run(shell_job({"exit 1", "sleep 0.05; kill -9 $$"}));
    CHECK(outcome.exit_code == 137);
  }
  SECTION("all of them say so") {
    const Outcome outcome = run(shell_job({"exit 14", "exit 14"}));
    CHECK(outcome.exit_code == 1);
  }
}

TEST_CASE("what ranks do after they were told to stop is not blamed", "[launcher][supervisor]") {
  const Outcome outcome =
      run(shell_job({"exit 6", "trap 'exit 143' TERM; while true; do sleep 0.02; done",
                     "trap 'exit 9' TERM; while true; do sleep 0.02; done"}));
  CHECK(outcome.exit_code == 6);
  CHECK_THAT(outcome.last_line(), Contains("rank 0 "));
}

TEST_CASE("ranks may end one after the other", "[launcher][supervisor]") {
  CHECK(run(shell_job({"exit 0", "sleep 0.4"})).exit_code == 0);
}

TEST_CASE("a rank that ends early with success while others go on is a failure",
          "[launcher][supervisor]") {
  const Outcome outcome =
      run(shell_job({"exec sleep 100", "exit 0"}), {}, /*early_exit_grace=*/milliseconds{300});
  CHECK(outcome.exit_code == 1);
  CHECK_THAT(outcome.last_line(), Contains("rank 1 ") && Contains("exit code 0 while others"));
  CHECK(outcome.took > milliseconds{300});
}

TEST_CASE("one signal to the launcher lets the ranks finish", "[launcher][supervisor]") {
  const auto [signal, name] =
      GENERATE(table<int, std::string>({{SIGINT, "INT"}, {SIGTERM, "TERM"}}));
  const std::string code = std::to_string(128 + signal);
  const std::string rank = "trap 'sleep 0.5; echo saved; exit " + code + "' " + name +
                           "; while true; do sleep 0.02; done";
  const Outcome outcome = run(shell_job({rank, rank}), {{signal}});
  CHECK(outcome.exit_code == 128 + signal);
  CHECK_THAT(outcome.out, Contains("[w0:0] saved") && Contains("[w0:1] saved"));
}

TEST_CASE("ranks without a handler die of the signal that was passed on",
          "[launcher][supervisor]") {
  CHECK(run(shell_job({"exec sleep 100", "exec sleep 100"}), {{SIGINT}}).exit_code == 130);
}

TEST_CASE("a hang-up asks the ranks to end", "[launcher][supervisor]") {
  const Outcome outcome =
      run(shell_job({"trap 'exit 143' TERM; while true; do sleep 0.02; done"}), {{SIGHUP}});
  CHECK(outcome.exit_code == 129);
}

TEST_CASE("Ctrl-Z is answered and not obeyed", "[launcher][supervisor]") {
  const Outcome outcome = run(shell_job({"sleep 0.8"}), {{SIGTSTP}});
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.err, Contains("Ctrl-Z is ignored; Ctrl-C ends the run"));
}

TEST_CASE("a second signal kills at once", "[launcher][supervisor]") {
  const std::string stubborn = "trap '' TERM INT; while true; do sleep 0.05; done";
  const Outcome outcome = run(shell_job({stubborn, stubborn}), {{SIGTERM, SIGTERM}});
  CHECK(outcome.exit_code == 143);
  CHECK(outcome.took > milliseconds{550});
  CHECK(outcome.took < milliseconds{3000});
}

TEST_CASE("an error while saving after a signal is reported, not hidden",
          "[launcher][supervisor]") {
  const Outcome outcome =
      run(shell_job({"trap 'echo disk full >&2; exit 6' TERM; while true; do sleep 0.02; done"}),
          {{SIGTERM}});
  CHECK(outcome.exit_code == 6);
  CHECK_THAT(outcome.last_line(), Contains("disk full"));
}

TEST_CASE("children of ranks end with them, also those that left the process group",
          "[launcher][supervisor]") {
  const Outcome outcome = run(shell_job({
      "sleep 100 & echo pid=$!; setsid sleep 100 & echo pid=$!; sleep 0.6; exit 0",
      "(setsid sh -c 'echo pid=$$; exec sleep 100' &) ; sleep 0.6; kill -9 $$",
  }));
  CHECK(outcome.exit_code == 137);
  const std::vector<pid_t> pids = pids_in(outcome.out);
  CHECK(pids.size() == 3);
  // They have been sent SIGKILL; a busy machine takes a moment to let them die of it.
  for (const pid_t pid : pids)
    CHECK(testing::becomes_true([&] { return !testing::is_alive(pid); }, milliseconds{2000}));
}

TEST_CASE("a child of the launcher's that is not the job's is left alone",
          "[launcher][supervisor]") {
  const pid_t bystander = fork();
  if (bystander == 0) {
    execl("/bin/sleep", "sleep", "100", nullptr);
    _exit(127);
  }
  CHECK(run(shell_job({"exit 0", "kill -9 $$"})).exit_code == 137);
  CHECK(testing::is_alive(bystander));
  kill(bystander, SIGKILL);
}

TEST_CASE("a program that cannot be started ends the job and says which",
          "[launcher][supervisor]") {
  Job job = shell_job({"exec sleep 100", "exit 0"});
  job.processes[1].executable = "/nowhere/dstrain";
  const Outcome outcome = run(job);
  CHECK(outcome.exit_code == kNotStarted);
  CHECK_THAT(outcome.err, Contains("rank 1 on w0 cannot be started: ") &&
                              Contains("/nowhere/dstrain: No such file or directory"));
}

TEST_CASE("a rank gets its arguments, environment and cores, and no file but the first four",
          "[launcher][supervisor]") {
  setenv("DSTRAIN_TEST_INHERITED", "kept", 1);
  setenv("DSTRAIN_TEST_UNSET", "dropped", 1);
  Job job =
      shell_job({"echo \"$0,$1,$2,$DSTRAIN_TEST_INHERITED,$DSTRAIN_TEST_UNSET,$RANK\"; "
                 "grep Cpus_allowed_list /proc/self/status; "
                 "ls /proc/$$/fd; "
                 "echo group=$(cut -d' ' -f5 /proc/$$/stat),$$"});
  const int core = usable_cores().ids.back();
  job.processes[0].argv.insert(job.processes[0].argv.end(), {"zero", "a b\tc\"$x", "\xff\xfe"});
  job.processes[0].environment = {{"RANK", "7"}};
  job.processes[0].unset = {"DSTRAIN_TEST_UNSET"};
  job.processes[0].cores = {core};
  const Outcome outcome = run(job);
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("zero,a b\tc\"$x,\xff\xfe,kept,,7\n"));
  CHECK_THAT(outcome.out, Contains("Cpus_allowed_list:\t" + std::to_string(core) + "\n"));
  CHECK_THAT(outcome.out, Contains("\n[w0:0] 0\n[w0:0] 1\n[w0:0] 2\n[w0:0] 3\n[w0:0] group"));
  const size_t group = outcome.out.find("group=");
  const size_t comma = outcome.out.find(',', group);
  CHECK(outcome.out.substr(group + 6, comma - group - 6) ==
        outcome.out.substr(comma + 1, outcome.out.find('\n', comma) - comma - 1));
}

TEST_CASE("a flood of output stalls neither its rank nor the others", "[launcher][supervisor]") {
  // 30 MB each; the screen is a file, so all of it arrives.
  const std::string flood = "head -c 30000000 /dev/zero | tr '\\0' 'x' | fold -w 99 >&2";
  const Outcome outcome = run(shell_job({flood, "echo quick"}));
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("quick"));
}

TEST_CASE("everything a rank wrote before it died is shown", "[launcher][supervisor]") {
  const Outcome outcome = run(shell_job({"seq 1 5000; printf 'last words' >&2; kill -9 $$"}));
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 5000);
  CHECK_THAT(outcome.last_line(), Contains("its last words: last words"));
}

}  // namespace
}  // namespace dstrain::launcher
