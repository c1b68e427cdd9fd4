// A host's agent and the launcher's side of it, over pipes: ranks that end, agents that are killed
// or stopped, channels that end or say nonsense, output that nobody reads. Nothing may be left.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "launcher/supervision/log_mux.h"
#include "launcher/supervision/supervisor.h"
#include "tests/harness/local_agents.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::becomes_true;
using testing::is_alive;
using testing::LocalAgent;
using testing::run_until;
using testing::ShellRank;

// A loaded machine may take its time; what is measured is printed.
constexpr milliseconds kSoon{10'000};

double since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// The number behind "pid=" that a script printed.
pid_t pid_in(const std::string& text) {
  const size_t at = text.find("pid=");
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + 4));
}

/// A rank that says its pid and then does nothing for long.
struct SleepingRank : ShellRank {
  SleepingRank(asio::io_context& loop, AgentHost& host, int rank = 0)
      : ShellRank(host, "echo pid=$$; exec sleep 1000", rank) {
    run_until(loop, [this] { return out.ends_with('\n'); });
  }
  [[nodiscard]] pid_t pid() const { return pid_in(out); }
};

TEST_CASE("a rank on an agent gives its output, its pid and its exit code", "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1");
  REQUIRE_FALSE(agent.failure());
  CHECK(agent.host().hello().cores.size() >= 1);
  CHECK(agent.host().hello().available_memory_bytes > 0);
  CHECK(std::abs(agent.host().clock_offset().count()) < 20'000'000);
  ShellRank rank(agent.host(), "echo pid=$$; echo wrong >&2; exit 7");
  REQUIRE(run_until(loop, [&] { return rank.has_ended(); }));
  CHECK(rank.status->code == 7);
  CHECK(rank.err == "wrong\n");
  CHECK(rank.process->pid() == pid_in(rank.out));
  CHECK(dismiss_agents(loop, {&agent.host()}, kSoon).empty());
}

TEST_CASE("arguments and environment reach a rank byte for byte, and its working folder is kept",
          "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1");
  const testing::TemporaryFolder folder;
  const std::string awkward = " a\nb\t\"c\" '$(date)' `id` \\ --x ; * \xff";
  ShellRank rank(agent.host(), {.host = "w1",
                                .executable = "/bin/sh",
                                .argv = {"sh", "-c", R"(printf '%s|%s|%s' "$1" "$AWKWARD" "$PWD")",
                                         "sh", awkward},
                                .environment = {{"AWKWARD", awkward}},
                                .unset = {"PWD"},
                                .working_folder = folder.path()});
  REQUIRE(run_until(loop, [&] { return rank.has_ended(); }));
  CHECK(rank.out == awkward + "|" + awkward + "|" + folder.path().string());
}

TEST_CASE("a rank that cannot be started says why", "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1");
  ShellRank nowhere(agent.host(), {.host = "w1",
                                   .rank = 0,
                                   .executable = "/bin/sh",
                                   .argv = {"sh"},
                                   .working_folder = "/no/such/folder"});
  ShellRank nothing(agent.host(),
                    {.host = "w1", .rank = 1, .executable = "/no/such/program", .argv = {"x"}});
  REQUIRE(run_until(loop, [&] { return nowhere.has_ended() && nothing.has_ended(); }));
  CHECK(nowhere.status->code == 127);
  CHECK(nowhere.status->detail == "working folder /no/such/folder: No such file or directory");
  CHECK(nothing.status->detail == "/no/such/program: No such file or directory");
}

TEST_CASE("an agent that is killed loses its ranks, which end by themselves", "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1");
  SleepingRank rank(loop, agent.host());
  const auto start = steady_clock::now();
  kill(agent.pid(), SIGKILL);
  REQUIRE(run_until(loop, [&] { return rank.has_ended(); }));
  CHECK(*rank.lost == "its host w1 is gone: its agent was killed by SIGKILL");
  std::printf("agent killed: seen after %.2f s\n", since(start));
  CHECK(becomes_true([&] { return !is_alive(rank.pid()); }, kSoon));
  CHECK(agent.host().has_closed());
}

TEST_CASE("an agent that is stopped loses its ranks after the patience", "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1", {.beat = milliseconds{200}, .patience = milliseconds{2000}});
  SleepingRank rank(loop, agent.host());
  const auto start = steady_clock::now();
  kill(agent.pid(), SIGSTOP);
  REQUIRE(run_until(loop, [&] { return rank.has_ended(); }));
  CHECK_THAT(*rank.lost, Contains("no word from its host w1 for 2."));
  std::printf("agent stopped: seen after %.2f s of patience 2 s\n", since(start));
  // Once it continues it ends its ranks, as its channel is closed.
  kill(agent.pid(), SIGCONT);
  CHECK(becomes_true([&] { return !is_alive(rank.pid()); }, kSoon));
}

TEST_CASE("a rank that is lost with its host is signalled no more, nor heard of again",
          "[failure][agent]") {
  asio::io_context loop;
  LocalAgent agent(loop, "w1");
  SleepingRank rank(loop, agent.host());
  kill(agent.pid(), SIGKILL);
  REQUIRE(run_until(loop, [&] { return rank.has_ended(); }));
  rank.process->signal(SIGTERM);
  ShellRank late(agent.host(), "exit 0", 1);
  HostAnswer answer;
  bool is_answered = false;
  agent.host().ask({.kind = QuestionKind::kFolders, .path = "/"}, [&](HostAnswer a) {
    answer = std::move(a);
    is_answered = true;
  });
  REQUIRE(run_until(loop, [&] { return late.has_ended() && is_answered; }));
  CHECK(late.lost == rank.lost);
  CHECK(answer.error == *rank.lost);
  CHECK_FALSE(rank.status);
}

/// An agent and no AgentHost: what a launcher may do wrong is done by hand.
struct BareAgent {
  explicit BareAgent(asio::io_context& loop)
      : stream(std::make_unique<LocalStream>(
            loop, std::vector<std::string>{testing::dstrain_binary(), "agent"})) {
    stream->listen({.on_data = [this](std::string_view bytes) { said += bytes; },
                    .on_error_data = [this](std::string_view bytes) { words += bytes; },
                    .on_closed = [this](const StreamEnd& how) { end = how; }});
  }
  void start(const std::string& script) {
    stream->write(encode(ToAgent(Start{{.executable = "/bin/sh", .argv = {"sh", "-c", script}}})));
  }
  std::unique_ptr<LocalStream> stream;
  std::string said;
  std::string words;
  std::optional<StreamEnd> end;
};

TEST_CASE("a launcher that falls silent, leaves or talks nonsense ends the ranks of an agent",
          "[failure][agent]") {
  asio::io_context loop;
  BareAgent agent(loop);
  agent.stream->write(encode(ToAgent(LauncherHello{.patience_ms = 1500, .kill_grace_ms = 500})));
  // It does not end when asked to, and leaves a child in a session of its own.
  agent.start(
      "setsid sh -c 'echo pid=$$; exec sleep 1000' & trap '' TERM; while :; do sleep 0.1; done");
  REQUIRE(run_until(loop, [&] { return pid_in(agent.said) > 0; }));
  const pid_t grandchild = pid_in(agent.said);
  const auto start = steady_clock::now();
  std::string words;
  SECTION("silent") {
    words = "no word from the launcher for ";
  }
  SECTION("gone") {
    agent.stream->close_input();
    words = "the launcher's channel ended; ending 1 rank";
  }
  SECTION("nonsense") {
    agent.stream->write("GET / HTTP/1.1\r\n");
    words = "the launcher sent a message of ";
  }
  SECTION("the agent is told to end") {
    kill(agent.stream->pid(), SIGTERM);
    words = "the agent got SIGTERM";
  }
  REQUIRE(run_until(loop, [&] { return agent.end.has_value(); }));
  std::printf("%s: agent and ranks gone after %.2f s\n", words.c_str(), since(start));
  CHECK_THAT(agent.words, Contains(words));
  CHECK(agent.end->exit_code == 14);
  CHECK_FALSE(is_alive(grandchild));
}

TEST_CASE("nothing is started for a launcher that has not said hello", "[failure][agent]") {
  asio::io_context loop;
  BareAgent agent(loop);
  agent.start("echo pid=$$; sleep 1000");
  REQUIRE(run_until(loop, [&] { return agent.end.has_value(); }));
  CHECK(pid_in(agent.said) == -1);
  CHECK_THAT(agent.words, Contains("before the hello"));
}

TEST_CASE("what a login prints does not disturb an agent, and a host without one says so",
          "[failure][agent]") {
  asio::io_context loop;
  LocalAgent chatty(
      loop, "w1", {},
      {"/bin/sh", "-c", "echo Welcome to w1; exec \"$0\" agent", testing::dstrain_binary()});
  CHECK_FALSE(chatty.failure());
  LocalAgent missing(loop, "w2", {}, {"/bin/sh", "-c", "exec /opt/dstrain agent"});
  REQUIRE(missing.failure());
  CHECK(missing.failure()->is_missing);
  CHECK_THAT(missing.failure()->why, Contains("exit code 127") && Contains("/opt/dstrain"));
  LocalAgent mute(loop, "w3", {.beat = milliseconds{100}, .hello_patience = milliseconds{500}},
                  {"/bin/sleep", "1000"});
  REQUIRE(mute.failure());
  CHECK_THAT(mute.failure()->why, Contains("has said nothing"));
  LocalAgent endless(loop, "w4", {}, {"/usr/bin/yes"});
  REQUIRE(endless.failure());
  CHECK(endless.failure()->why == "logging in prints endless text");
}

TEST_CASE("a flood of output slows down no rank while nobody reads it, and what is lost is counted",
          "[failure][agent][slow]") {
  constexpr std::int64_t kMegabytes = 100;
  const testing::TemporaryFolder folder;
  const std::string done = (folder.path() / "done").string();
  asio::io_context loop;
  LocalAgent agent(loop, "w1", {.agent_patience = seconds{120}});
  // 100 bytes a line, so that what is lost can be counted in lines.
  ShellRank rank(agent.host(), "yes " + std::string(99, 'x') + " | head -c " +
                                   std::to_string(kMegabytes * 1'000'000) + "; touch " + done +
                                   "; echo the end >&2; exit 5");
  const auto start = steady_clock::now();
  // The agent is told to start it, then hears and says nothing that anybody reads.
  loop.restart();
  loop.run_for(milliseconds{100});
  CHECK(becomes_true([&] { return std::filesystem::exists(done); }, seconds{60}));
  const double took = since(start);
  REQUIRE(run_until(
      loop, [&] { return rank.has_ended(); }, seconds{60}));
  CHECK(rank.status->code == 5);
  CHECK(rank.err == "the end\n");
  std::int64_t lines = 0;
  std::int64_t dropped = 0;
  std::istringstream text(rank.out);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("==== ")) {
      dropped += std::stoll(line.substr(5));
    } else {
      REQUIRE(line.size() == 99);
      ++lines;
    }
  }
  CHECK(lines + dropped == kMegabytes * 10'000);
  std::printf("a rank wrote %lld MB in %.2f s while nobody read; %lld of %lld lines were dropped\n",
              static_cast<long long>(kMegabytes), took, static_cast<long long>(dropped),
              static_cast<long long>(lines + dropped));
}

TEST_CASE("the end of one agent leaves another's ranks on the same host alone",
          "[failure][agent]") {
  asio::io_context loop;
  LocalAgent one(loop, "w1");
  LocalAgent other(loop, "w1");
  SleepingRank of_one(loop, one.host());
  SleepingRank of_other(loop, other.host());
  CHECK(dismiss_agents(loop, {&one.host()}, kSoon).empty());
  CHECK_FALSE(is_alive(of_one.pid()));
  CHECK(is_alive(of_other.pid()));
  CHECK_FALSE(of_other.has_ended());
}

TEST_CASE("a job over two agents is supervised like one of this machine", "[failure][agent]") {
  asio::io_context loop;
  LocalAgent first(loop, "w0");
  LocalAgent second(loop, "w1");
  const testing::TemporaryFolder folder;
  const FileDescriptor out(open((folder.path() / "out").c_str(), O_RDWR | O_CREAT, 0600));
  const FileDescriptor err(open((folder.path() / "err").c_str(), O_RDWR | O_CREAT, 0600));
  Job job = testing::shell_job(
      {"echo pid=$$; exec sleep 1000", "echo pid=$$; sleep 0.3; echo oh no >&2; kill -SEGV $$"});
  job.processes[1].host = "w1";
  LogMux log(job, {.stdout_fd = out.get(), .stderr_fd = err.get()});
  AgentSpawner spawner({{"w0", &first.host()}, {"w1", &second.host()}});
  {
    Supervisor supervisor(loop, spawner, log, {});
    CHECK(supervisor.run(job).exit_code == 139);
  }
  CHECK_THAT(folder.read("err"), Contains("rank 1 (local rank 1) on w1, pid ") &&
                                     Contains("was killed by SIGSEGV") &&
                                     EndsWith("its last words: oh no\n"));
  CHECK_FALSE(is_alive(pid_in(folder.read("out"))));
  CHECK(dismiss_agents(loop, {&first.host(), &second.host()}, kSoon).empty());
}

}  // namespace
}  // namespace dstrain::launcher
