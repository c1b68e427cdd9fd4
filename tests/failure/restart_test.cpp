// dstrain itself, training, while ranks are killed again and again: it starts again from the newest
// checkpoint, and ends with the numbers of an undisturbed run.
#include <array>
#include <chrono>
#include <csignal>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <ifaddrs.h>

#include "tests/failure/tiny_run.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;
using Clock = std::chrono::steady_clock;

/// What follows `key` in each line of a metrics.jsonl: the digits as they were printed.
std::vector<std::string> column(const std::string& metrics, const std::string& key) {
  std::vector<std::string> values;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = "\"" + key + "\":";
    const size_t begin = line.find(name);
    REQUIRE(begin != std::string::npos);
    const size_t at = begin + name.size();
    values.push_back(line.substr(at, line.find_first_of(",}", at) - at));
  }
  return values;
}

std::vector<std::string> with(std::vector<std::string> flags,
                              const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// An IPv4 address of this machine that is not the loopback's; empty if there is none.
std::string own_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* const address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    if (found.empty() && !std::string_view(text.data()).starts_with("127.")) found = text.data();
  }
  freeifaddrs(list);
  return found;
}

/// The lines that the launcher wrote about restarts.
std::vector<std::string> restarts_in(const std::string& log) {
  std::vector<std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find("restart ");
        at != std::string::npos && line.find(" of 50: ") != std::string::npos) {
      found.push_back(line.substr(at));
    }
  }
  return found;
}

TEST_CASE("a run whose ranks are killed all the time ends as if nothing had happened",
          "[failure][restart][slow]") {
  // Steps of some milliseconds: long enough to be killed in, also while one is saved.
  const std::vector<std::string> flags = {"--set", "training.steps=300",
                                          "--set", "checkpoint.interval=10",
                                          "--set", "model.hidden_size=128",
                                          "--set", "model.intermediate_size=256",
                                          "--set", "model.num_hidden_layers=4",
                                          "--set", "data.sequence_length=128",
                                          "--set", "model.max_position_embeddings=128"};
  const TinyRun undisturbed;
  auto start = Clock::now();
  Program straight(undisturbed.launch(flags));
  REQUIRE(straight.wait(seconds{200}) == 0);
  const auto whole = std::chrono::duration_cast<milliseconds>(Clock::now() - start);

  const TinyRun run;
  start = Clock::now();
  // On a busy machine several in a row may be killed before they get to a checkpoint.
  Program launch(
      run.launch(with(flags, {"--max-restarts", "50", "--max-restarts-without-progress", "50"})));
  std::mt19937 random(7);
  int killed = 0;
  // Parts of what the whole run takes on this machine, so that most attempts get somewhere.
  const auto next = [&] {
    const auto percent = static_cast<int>(15 + random() % 25);
    return killed < 10 ? milliseconds{whole * percent / 100} : milliseconds{200'000};
  };
  while (!launch.wait(next())) {
    REQUIRE(killed < 10);
    const std::vector<pid_t> ranks = launch.children();
    if (ranks.size() == 2 && kill(ranks[random() % 2], SIGKILL) == 0) ++killed;
  }
  CHECK(launch.wait(milliseconds{0}) == 0);
  const std::vector<std::string> restarts = restarts_in(launch.err());
  std::cout << "300 steps, " << killed << " ranks killed, " << restarts.size() << " restarts, "
            << std::chrono::duration<double>(Clock::now() - start).count() << " s\n";
  INFO(launch.err());
  CHECK(restarts.size() >= 1);
  CHECK_THAT(restarts.at(0), StartsWith("restart 1 of 50: rank ") &&
                                 Contains(" on localhost was killed by SIGKILL") &&
                                 Contains(" on 1 host × 2"));
  for (const char* key : {"step", "tokens", "loss", "grad_norm", "lr"}) {
    CHECK(column(run.read("run/metrics.jsonl"), key) ==
          column(undisturbed.read("run/metrics.jsonl"), key));
  }
  // Each rank's log goes on where the last attempt's ended.
  CHECK_THAT(run.read("run/log/rank-00000.log"),
             StartsWith("==== started ") && Contains(" as rank 0 of 2, restart 1\n"));
}

TEST_CASE("a host that fails twice is left out, and the run keeps its batch without it",
          "[failure][restart][elastic][slow]") {
  const std::string address = own_address();
  if (address.empty()) {
    testing::skip("this machine has no address but its loopback's, by which hosts do not meet");
    return;
  }
  // Two names of this machine stand for two hosts.
  const auto flags = [&](const TinyRun& run) {
    std::ofstream(run.path("hosts")) << "localhost slots=1\n127.0.0.1 slots=1\n";
    return std::vector<std::string>{testing::dstrain_binary(),
                                    "launch",
                                    run.path("config.json"),
                                    "--hostfile",
                                    run.path("hosts"),
                                    "--master_addr",
                                    address,
                                    "--set",
                                    "training.steps=60",
                                    "--set",
                                    "checkpoint.interval=5",
                                    "--set",
                                    "model.hidden_size=64",
                                    "--set",
                                    "model.num_hidden_layers=4",
                                    "--set",
                                    "data.sequence_length=64",
                                    "--set",
                                    "optimizer.params.lr=1e-4"};
  };
  const TinyRun undisturbed;
  Program straight(flags(undisturbed));
  REQUIRE(straight.wait(seconds{60}) == 0);

  const TinyRun run;
  Program launch(with(flags(run), {"--max-restarts", "50", "--min-nodes", "1"}));
  for (int failures = 0; failures < 2; ++failures) {
    std::vector<pid_t> ranks;
    const std::int64_t before = run.steps();
    REQUIRE(testing::becomes_true(
        [&] {
          ranks = launch.children();
          return ranks.size() == 2 && run.steps() > before + 6;
        },
        seconds{60}));
    kill(ranks[1], SIGKILL);
    REQUIRE(testing::becomes_true([&] { return launch.children() != ranks; }, seconds{10}));
  }
  CHECK(launch.wait(seconds{150}) == 0);
  INFO(launch.err());
  CHECK_THAT(launch.err(),
             Contains("host 127.0.0.1 is left out: it failed 2 times") &&
                 Contains("1 host × 1 instead of 2 hosts × 1: 4 sequences a step as before, in 2 "
                          "micro-batches of 2") &&
                 Contains("rank 1 on 127.0.0.1 was killed by SIGKILL; resuming from step"));
  const auto losses = column(run.read("run/metrics.jsonl"), "loss");
  const auto expected = column(undisturbed.read("run/metrics.jsonl"), "loss");
  REQUIRE(losses.size() == expected.size());
  // From then on the batch is summed in another order: 1e-5 at first (the ladder of equalities),
  // which grows as the model learns its text by heart.
  for (size_t i = 0; i < losses.size(); ++i)
    CHECK(std::stod(losses[i]) == Approx(std::stod(expected[i])).epsilon(1e-3));
}

TEST_CASE("a run that always dies at the same step is given up, with what it dies of",
          "[failure][restart][slow]") {
  const TinyRun run;
  const auto start = Clock::now();
  Program launch(run.launch({"--max-restarts", "50", "--max-restarts-without-progress", "2"}));
  std::vector<pid_t> last_killed;
  while (!launch.wait(milliseconds{5})) {
    const std::vector<pid_t> ranks = launch.children();
    if (ranks.size() == 2 && ranks != last_killed && run.steps() >= 5) {
      kill(ranks[1], SIGSEGV);
      last_killed = ranks;
      // The next attempt begins a new metrics.jsonl; until then this one's is there.
      testing::becomes_true([&] { return launch.children() != ranks; }, seconds{10});
      testing::becomes_true([&] { return run.steps() < 5; }, seconds{10});
    }
    REQUIRE(Clock::now() - start < seconds{60});
  }
  CHECK(launch.wait(milliseconds{0}) == 9);
  INFO(launch.err());
  CHECK_THAT(launch.last_line(),
             Contains("2 restarts in a row reached no newer checkpoint: each time rank 1 on "
                      "localhost was killed by SIGSEGV"));
  CHECK(restarts_in(launch.err()).size() == 2);
}

TEST_CASE("what would fail again is not tried again", "[failure][restart]") {
  const TinyRun run;
  Program launch(run.launch({"--max-restarts", "5", "--set", "training.steps=20", "--set",
                             "optimizer.params.lr=1e30", "--set", "gradient_clipping=0"}));
  CHECK(launch.wait(seconds{30}) == 7);
  INFO(launch.err());
  CHECK_THAT(launch.err(), !Contains("restart 1 of"));
}

TEST_CASE("a run that is interrupted is not restarted", "[failure][restart][slow]") {
  const TinyRun run;
  Program launch(run.launch({"--max-restarts", "5"}));
  REQUIRE(run.reaches_step(3));
  launch.signal(SIGINT);
  CHECK(launch.wait(seconds{15}) == 130);
  CHECK_THAT(launch.err(), !Contains("restart 1 of"));
}

TEST_CASE("restarts that are used up leave the failure's own code, and its sentence last",
          "[failure][restart][slow]") {
  const TinyRun run;
  Program launch(run.launch({"--max-restarts", "1", "--set", "checkpoint.interval=2"}));
  for (const int victim : {0, 1}) {
    std::vector<pid_t> ranks;
    const std::int64_t before = run.steps();
    REQUIRE(testing::becomes_true(
        [&] {
          ranks = launch.children();
          return ranks.size() == 2 && run.steps() > before + 3;
        },
        seconds{30}));
    kill(ranks[static_cast<size_t>(victim)], SIGKILL);
    testing::becomes_true([&] { return launch.children() != ranks; }, seconds{10});
  }
  CHECK(launch.wait(seconds{15}) == 137);
  INFO(launch.err());
  CHECK_THAT(launch.last_line(),
             Contains("all 1 restart that was allowed is used up: rank 1 (local rank 1) on "
                      "localhost, pid ") &&
                 Contains("was killed by SIGKILL (signal 9)"));
}

}  // namespace
}  // namespace dstrain
