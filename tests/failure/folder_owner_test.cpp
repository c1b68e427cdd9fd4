// F41-F43: several runs that are started in one folder, and a folder that is taken away. dstrain
// itself, many times at once: one runs, to the digits of a run that nobody disturbed.
//
// DSTRAIN_STARTS (6): how many begin within DSTRAIN_START_DELAY_MS (300) of each other, in a run of
// DSTRAIN_STEPS (300).
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::TinyRun;
using Strings = std::vector<std::string>;

constexpr seconds kPatience{120};

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

int steps() {
  return number_of("DSTRAIN_STEPS", 300);
}

/// Flags of the run that all of these tests train.
Strings limited(const Strings& more = {}) {
  Strings flags{"--set", "training.steps=" + std::to_string(steps()), "--set",
                "checkpoint.interval=50"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// The results of a run: its losses as they were printed, and the bytes of its last checkpoint.
struct Digits {
  Strings losses;
  Strings files;
  bool operator==(const Digits&) const = default;
};

Digits digits_of(const TinyRun& run, const std::string& folder) {
  Digits digits;
  std::istringstream lines(run.read(folder + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    digits.losses.push_back(json.at("step").dump() + " " + json.at("loss").dump() + " " +
                            json.at("grad_norm").dump());
  }
  const std::string latest = run.read(folder + "/checkpoints/latest");
  for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
    digits.files.push_back(
        run.read(folder + "/checkpoints/" + latest.substr(0, latest.find('\n')) + "/" + name));
  }
  return digits;
}

/// The digits of a run that has a folder of its own.
Digits undisturbed(const TinyRun& run) {
  Program alone(run.launch(limited({"--set", "training.output_dir=" + run.path("alone")})));
  REQUIRE(alone.wait(kPatience) == 0);
  Digits digits = digits_of(run, "alone");
  REQUIRE(digits.losses.size() == static_cast<size_t>(steps()));
  REQUIRE(!digits.files.front().empty());
  return digits;
}

/// Starts so many, and says how many trained; everybody else must have been refused, or have found
/// all done.
int start_at_once(const TinyRun& run, int starts, milliseconds longest_delay) {
  std::mt19937 random(20261122);
  std::uniform_int_distribution<int> delay(0, static_cast<int>(longest_delay.count()));
  std::vector<milliseconds> begins;
  for (int i = 0; i < starts; ++i) {
    begins.emplace_back(delay(random));
  }
  std::sort(begins.begin(), begins.end());
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Program>> programs;
  for (const milliseconds at : begins) {
    std::this_thread::sleep_until(begin + at);
    programs.push_back(std::make_unique<Program>(run.launch(limited())));
  }
  int trained = 0;
  for (const auto& program : programs) {
    const auto code = program->wait(kPatience);
    const std::string said = program->err();
    INFO(said);
    if (said.find("finished at step") != std::string::npos) {
      ++trained;
      CHECK(code == 0);
    } else if (code == 0) {
      CHECK_THAT(said, Contains("nothing to do"));
    } else {
      CHECK(code == 3);
      CHECK_THAT(program->last_line(), Contains("--take-over") || Contains("just begun"));
    }
  }
  return trained;
}

TEST_CASE("F41: of several starts in one folder one runs, as if it were alone",
          "[failure][owner][slow]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  const Digits expected = undisturbed(run);
  const int starts = number_of("DSTRAIN_STARTS", 6);
  const milliseconds delay{number_of("DSTRAIN_START_DELAY_MS", 300)};
  SECTION("two at the same moment") {
    CHECK(start_at_once(run, 2, milliseconds{0}) == 1);
  }
  SECTION("many, one after another") {
    CHECK(start_at_once(run, starts, delay) == 1);
  }
  SECTION("after the run before was killed with its launcher") {
    const auto killed = std::make_unique<Program>(run.launch(limited()));
    REQUIRE(run.reaches_step(60));
    const std::vector<pid_t> ranks = killed->children();
    killed->signal(SIGKILL);
    for (const pid_t rank : ranks)
      kill(rank, SIGKILL);
    REQUIRE(killed->wait(kPatience) == 128 + SIGKILL);
    REQUIRE(testing::becomes_true(
        [&] { return std::none_of(ranks.begin(), ranks.end(), testing::is_alive); }, seconds{5}));
    CHECK(start_at_once(run, starts, delay) == 1);
  }
  CHECK(digits_of(run, "run") == expected);
}

TEST_CASE("F41: one rank after another's start is refused, readers are not", "[failure][owner]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  Program first(run.launch({"--set", "checkpoint.interval=20"}));
  REQUIRE(run.reaches_step(60));
  Program second({testing::dstrain_binary(), "train", run.path("config.json")});
  CHECK(second.wait(kPatience) == 3);
  CHECK_THAT(second.last_line(), Contains("belongs to pid ") && Contains("on host ") &&
                                     Contains("there since 20") && Contains("--take-over"));
  Program checked(run.launch({"--check"}));
  CHECK(checked.wait(kPatience) == 0);
  CHECK_THAT(checked.err(), Contains("run belongs to pid ") && Contains("--take-over"));
  Program evaluated(
      run.launch({"--evaluate-only", "--set", "data.validation=" + run.path("data/train"), "--set",
                  "training.eval_batches=1"}));
  CHECK(evaluated.wait(kPatience) == 0);
  Program generated({testing::dstrain_binary(), "generate", "--checkpoint", run.path("run"),
                     "--prompt", "line ", "--max-tokens", "3"});
  CHECK(generated.wait(kPatience) == 0);

  // dstrain status of a run that runs, was stopped by its user, or was killed.
  const auto status = [&](const Strings& more = {}) {
    Strings argv{testing::dstrain_binary(), "status", run.path("run")};
    argv.insert(argv.end(), more.begin(), more.end());
    Program program(argv);
    CHECK(program.wait(kPatience) == 0);
    return program.out();
  };
  CHECK_THAT(status(), Contains("state       running: it holds the kernel's lock") &&
                           Contains("rank 0") && Contains("heartbeat") &&
                           Contains("checkpoint  step ") && Contains("metrics     step "));
  auto json = nlohmann::json::parse(status({"--json"}));
  CHECK(json["state"] == "running");
  CHECK(json["run"]["pid"] == first.children().front());
  CHECK(json["checkpoint"]["step"].get<int>() >= 20);
  CHECK(json["metrics"]["step"].get<int>() >= 60);
  first.signal(SIGTERM);
  CHECK(first.wait(kPatience) == 128 + SIGTERM);
  CHECK_THAT(status(), Contains("state       not running: there is no owner.json") &&
                           Contains("ended       stopped by signal 15 at step "));
  const std::int64_t before = run.steps();
  Program killed({testing::dstrain_binary(), "train", run.path("config.json")});
  REQUIRE(run.reaches_step(before + 20));
  killed.signal(SIGKILL);
  CHECK(killed.wait(kPatience) == 128 + SIGKILL);
  CHECK_THAT(status(), Contains("state       not running: no process") &&
                           Contains("ended       without a word"));
  Program nothing({testing::dstrain_binary(), "status", run.path("data")});
  CHECK(nothing.wait(kPatience) == 2);
  CHECK_THAT(nothing.last_line(), Contains("holds nothing of a run"));
}

TEST_CASE("F42: a run whose folder is taken over while it saves stops, and the new one is right",
          "[failure][owner][slow]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  const Digits expected = undisturbed(run);
  Program first(run.launch(limited({"--set", "checkpoint.interval=1"})));
  REQUIRE(run.reaches_step(20));
  Program second(run.launch(limited({"--take-over"})));
  CHECK(second.wait(kPatience) == 0);
  CHECK(first.wait(kPatience) == 3);
  INFO(first.err() << second.err());
  CHECK_THAT(first.err(), Contains("was taken over by pid ") && Contains("writes nothing more"));
  CHECK_THAT(second.err(), Contains("--take-over: ") && Contains("is taken from pid ") &&
                               Contains("finished at step"));
  std::ifstream history(run.path("run") + "/history.jsonl");
  std::vector<std::string> events;
  for (std::string line; std::getline(history, line);) {
    events.push_back(nlohmann::json::parse(line).at("event"));
  }
  CHECK(events == Strings{"start", "start", "end"});  // the first wrote nothing more there either
  CHECK(digits_of(run, "run") == expected);
}

TEST_CASE("F43: a run whose folder is deleted ends with an error", "[failure][owner]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  Strings flags;
  SECTION("without a save before its end") {}
  SECTION("with one now and then, where failures of saves do not matter") {
    flags = {"--set", "checkpoint.interval=10", "--set", "checkpoint.on_save_failure=continue"};
  }
  SECTION("and is not created again") {
    flags = {"--max-restarts", "3"};
  }
  Program program(run.launch(flags));
  REQUIRE(run.reaches_step(20));
  fs::rename(run.path("run"), run.path("elsewhere"));
  fs::remove_all(run.path("elsewhere"));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(program.wait(kPatience) == 6);
  INFO(program.err());
  CHECK(std::chrono::steady_clock::now() - begin < seconds{10});
  CHECK_THAT(program.err(), Contains("was deleted or moved away while this run used it"));
  CHECK_FALSE(fs::exists(run.path("run")));  // nor made anew
}

}  // namespace
}  // namespace dstrain
