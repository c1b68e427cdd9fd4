// dstrain launch with 2 to 4 ranks, of which a random one is killed or stopped at a random moment
// of a random phase: starting, the first step, a step, a save, the end. Each fault is reported
// within its limit, no process is left, and the run that is started again ends with the digits of
// an undisturbed one.
//
//   DSTRAIN_RANDOM_FAULTS="KILLS STOPS SEED"   how many; a few unless given
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/failure/tiny_run.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::becomes_true;
using testing::Program;
using testing::TinyRun;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr int kSteps = 60;
// SIGTERM's grace is 3 s, the limits of a step and of a save as well; two more cores' worth of
// other work may be on the machine.
constexpr milliseconds kKillLimit{8000};
constexpr milliseconds kToldLimit{6000};
constexpr milliseconds kHangLimit{16'000};
constexpr milliseconds kSignalLimit{10'000};

enum class Phase { kStarting, kFirstStep, kStep, kSaving, kEnding };
constexpr std::array<const char*, 5> kPhases = {"starting", "first step", "step", "saving",
                                                "ending"};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::string> column(const std::string& text, const std::string& key) {
  std::vector<std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string mark = "\"" + key + "\":";
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) continue;
    values.push_back(line.substr(at, line.find_first_of(",}", at) - at));
  }
  return values;
}

std::set<std::string> entries_of(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.insert(entry.path().filename());
  return names;
}

/// Named as only unfinished things are.
std::set<std::string> unfinished_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.ends_with(".tmp") || name.find(".partial") != std::string::npos) names.insert(name);
  }
  return names;
}

/// The outcome of a trial, for the figures.
struct Figures {
  int done = 0;
  int too_late = 0;  ///< the run had ended by itself
  double slowest_s = 0;
  double sum_s = 0;

  void add(double took_s) {
    ++done;
    sum_s += took_s;
    slowest_s = std::max(slowest_s, took_s);
  }
};

class Trials {
 public:
  explicit Trials(unsigned seed) : random_(seed) {}

  /// Returns false if the run was over before the fault.
  bool kill_one(Figures& ended) {
    const Trial trial = begin();
    const Clock::time_point start = Clock::now();
    const int victim = pick(trial);
    if (victim < 0 || kill(trial.ranks[static_cast<std::size_t>(victim)], SIGKILL) != 0) {
      return too_late(trial, ended);
    }
    const bool has_ended = ends(trial, kKillLimit);
    const double took = seconds_since(start);
    INFO(describe(trial) << trial.launch->err());
    REQUIRE(has_ended);
    const int code = *trial.launch->wait(milliseconds{0});
    if (code == 0) return too_late(trial, ended);
    CHECK(code == 128 + SIGKILL);
    // Behind it the launcher may say what it found of the checkpoints.
    CHECK_THAT(trial.launch->err(), Catch::Contains(fmt::format("error: {}, was killed by SIGKILL",
                                                                name(trial, victim))));
    ended.add(took);
    finish(trial);
    return true;
  }

  bool stop_one(Figures& told, Figures& ended) {
    const Trial trial = begin({"--step-timeout", "6", "--save-timeout", "6"});
    const int victim = pick(trial);
    const Clock::time_point start = Clock::now();
    if (victim < 0 || kill(trial.ranks[static_cast<std::size_t>(victim)], SIGSTOP) != 0) {
      return too_late(trial, told);
    }
    const std::string sentence = name(trial, victim) + ", is stopped (state T)";
    becomes_true(
        [&] {
          return trial.launch->err().find(sentence) != std::string::npos ||
                 trial.launch->wait(milliseconds{0}).has_value();
        },
        kToldLimit);
    if (trial.launch->wait(milliseconds{0}) == 0) return too_late(trial, told);
    INFO(describe(trial) << trial.launch->err());
    CHECK(trial.launch->err().find(sentence) != std::string::npos);
    told.add(seconds_since(start));
    // Until the first step is done the limit is half an hour: there only a signal ends it.
    const std::string text = trial.launch->err().substr(trial.launch->err().find(sentence));
    const bool is_starting = text.find("has said nothing") != std::string::npos ||
                             text.find(", after step 0") != std::string::npos;
    if (is_starting || random_() % 2 == 0) {
      const Clock::time_point signalled = Clock::now();
      trial.launch->signal(SIGTERM);
      CHECK(ends(trial, kSignalLimit));
      // One that was past its last step has done all that was asked of it.
      const int code = trial.launch->wait(milliseconds{0}).value_or(-1);
      const bool was_done =
          trial.launch->err().find(fmt::format("step {}/{}", kSteps, kSteps)) != std::string::npos;
      CHECK((code == 128 + SIGTERM || (code == 0 && was_done)));
      ended.add(seconds_since(signalled));
    } else {
      CHECK(ends(trial, kHangLimit));
      CHECK(trial.launch->wait(milliseconds{0}).value_or(-1) == 8);
    }
    finish(trial);
    return true;
  }

 private:
  struct Trial {
    int size = 0;
    Phase phase{};
    std::string folder;
    std::unique_ptr<Program> launch;
    std::vector<pid_t> ranks;
  };

  [[nodiscard]] std::vector<std::string> command(int size, const std::string& folder) const {
    return {testing::dstrain_binary(),
            "launch",
            "--num_gpus",
            std::to_string(size),
            run_.path("config.json"),
            "--set",
            "training.steps=" + std::to_string(kSteps),
            "--set",
            "train_micro_batch_size_per_gpu=" + std::to_string(12 / size),
            "--set",
            "checkpoint.interval=5",
            "--set",
            "training.output_dir=" + folder};
  }

  /// Programs have a folder for temporary files of their own, which has to be empty afterwards.
  [[nodiscard]] std::unique_ptr<Program> start(int size,
                                               const std::string& folder,
                                               const std::vector<std::string>& more = {}) const {
    fs::create_directories(folder + ".tmpdir");
    std::vector<std::string> argv = command(size, folder);
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<Program>(argv, Program::Environment{{"TMPDIR", folder + ".tmpdir"}});
  }

  /// The digits of an undisturbed run of so many ranks.
  const std::string& reference(int size) {
    std::string& metrics = references_[size];
    if (metrics.empty()) {
      const std::string folder = run_.path("reference-" + std::to_string(size));
      REQUIRE(start(size, folder)->wait(seconds{60}) == 0);
      metrics = run_.read("reference-" + std::to_string(size) + "/metrics.jsonl");
    }
    return metrics;
  }

  /// At the moment of the fault.
  Trial begin(const std::vector<std::string>& limits = {}) {
    Trial trial{.size = 2 + static_cast<int>(random_() % 3),
                .phase = static_cast<Phase>(random_() % 5),
                .folder = run_.path("trial-" + std::to_string(++number_))};
    reference(trial.size);
    trial.launch = start(trial.size, trial.folder, limits);
    const auto ranks_are_there = [&] {
      trial.ranks = trial.launch->children();
      return static_cast<int>(trial.ranks.size()) == trial.size ||
             trial.launch->wait(milliseconds{0}).has_value();
    };
    becomes_true(ranks_are_there, seconds{20});
    const auto over = [&] { return trial.launch->wait(milliseconds{0}).has_value(); };
    const auto steps = [&] {
      const std::string text =
          run_.read(fs::path(trial.folder).filename().string() + "/metrics.jsonl");
      return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    };
    switch (trial.phase) {
      case Phase::kStarting:
        std::this_thread::sleep_for(milliseconds{random_() % 250});
        break;
      case Phase::kFirstStep:
        becomes_true([&] { return over() || fs::exists(trial.folder + "/metrics.jsonl"); },
                     seconds{20});
        break;
      case Phase::kStep: {
        const int step = 2 + static_cast<int>(random_() % (kSteps - 8));
        becomes_true([&] { return over() || steps() >= step; }, seconds{30});
        break;
      }
      case Phase::kSaving: {
        const int step = static_cast<int>(random_() % (kSteps - 8));
        becomes_true([&] { return over() || steps() >= step; }, seconds{30});
        becomes_true([&] { return over() || !unfinished_in(trial.folder).empty(); }, seconds{30});
        break;
      }
      case Phase::kEnding:
        becomes_true([&] { return over() || steps() >= kSteps; }, seconds{30});
        std::this_thread::sleep_for(std::chrono::microseconds{random_() % 20'000});
        break;
    }
    return trial;
  }

  /// -1: too late for any.
  int pick(const Trial& trial) {
    if (trial.launch->wait(milliseconds{0}) || static_cast<int>(trial.ranks.size()) != trial.size) {
      return -1;
    }
    return static_cast<int>(random_() % static_cast<unsigned>(trial.size));
  }

  static bool ends(const Trial& trial, milliseconds limit) {
    return trial.launch->wait(limit).has_value();
  }

  static std::string name(const Trial& trial, int rank) {
    return fmt::format("rank {} (local rank {}) on localhost, pid {}", rank, rank,
                       trial.ranks[static_cast<std::size_t>(rank)]);
  }

  static std::string describe(const Trial& trial) {
    return fmt::format("{} ranks, {}\n", trial.size,
                       kPhases[static_cast<std::size_t>(trial.phase)]);
  }

  bool too_late(const Trial& trial, Figures& figures) {
    for (const pid_t rank : trial.ranks)
      kill(rank, SIGCONT);
    const int code = trial.launch->wait(seconds{30}).value_or(-1);
    INFO(describe(trial) << trial.launch->err());
    CHECK(code == 0);
    ++figures.too_late;
    fs::remove_all(trial.folder);
    return false;
  }

  /// Checks that no process is left and that the run, started again, ends with the reference's
  /// digits.
  void finish(const Trial& trial) {
    for (const pid_t rank : trial.ranks)
      CHECK_FALSE(testing::is_alive(rank));
    const std::string folder = fs::path(trial.folder).filename();
    const auto again = start(trial.size, trial.folder);
    const int code = again->wait(seconds{60}).value_or(-1);
    INFO(again->err());
    CHECK(code == 0);
    const std::string metrics = run_.read(folder + "/metrics.jsonl");
    for (const char* key : {"step", "tokens", "loss", "grad_norm", "lr"})
      CHECK(column(metrics, key) == column(reference(trial.size), key));
    CHECK(unfinished_in(trial.folder).empty());
    CHECK(entries_of(trial.folder + ".tmpdir").empty());
    fs::remove_all(trial.folder);
    fs::remove_all(trial.folder + ".tmpdir");
  }

  const TinyRun run_;
  std::mt19937 random_;
  std::map<int, std::string> references_;
  int number_ = 0;
};

void report(const char* what, const Figures& figures) {
  std::cout << fmt::format(
      "{}: {} times, on average after {:.2f} s, at the latest after {:.2f} s; {} came after the "
      "run's own end\n",
      what, figures.done, figures.sum_s / std::max(1, figures.done), figures.slowest_s,
      figures.too_late);
}

TEST_CASE("ranks killed and stopped at random moments cost no digit, and nothing is left of them",
          "[failure][random][slow]") {
  int kills = 3;
  int stops = 2;
  unsigned seed = 17;
  if (const char* const wished = std::getenv("DSTRAIN_RANDOM_FAULTS")) {
    std::istringstream(wished) >> kills >> stops >> seed;
  }
  Trials trials(seed);
  Figures killed;
  while (killed.done < kills && killed.too_late < kills + 20)
    trials.kill_one(killed);
  report("SIGKILL: all ended", killed);
  Figures told;
  Figures ended;
  while (told.done < stops && told.too_late < stops + 20)
    trials.stop_one(told, ended);
  report("SIGSTOP: told", told);
  report("SIGTERM to the launcher of a stopped rank: all ended", ended);
  CHECK(killed.done == kills);
  CHECK(told.done == stops);
}

}  // namespace
}  // namespace dstrain
