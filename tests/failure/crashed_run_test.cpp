// Whole runs that are cut off at every single change that their saves make to the disk: killed
// there, or refused that change by the disk, once or from then on. However that ended, starting the
// run again must give the numbers of a run that nothing happened to, bit for bit.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/sweep.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;

enum class Fate : std::uint8_t {
  kKilled,
  kRefusedOnce,       ///< EIO
  kRefusedFromThenOn  ///< ENOSPC
};

/// The result of a child process's run, as its exit code.
enum Ending : int {
  kFinished = 0,  ///< and the fault did not come
  kOther = 1,
  kStorageFailed = 6,
  kFinishedAfterFault = 10,
  kDied = 77
};

struct Fault {
  Fate fate = Fate::kKilled;
  int at = 0;  ///< the number of the change, over all ranks; 0: never
};

/// In a process of its own, so that dying is real and the next run begins with nothing.
Ending run_in_child(const LoadedConfig& config, int ranks, Fault fault) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    spdlog::set_level(spdlog::level::off);
    std::atomic<int> changes = 0;
    const DiskProbe probe = [&](const DiskChange& change) {
      const int number = ++changes;
      const bool once = number == fault.at;
      if (fault.fate == Fate::kKilled && once) {
        ::_exit(kDied);
      }
      if (fault.fate == Fate::kRefusedOnce && once) {
        throw StorageError(fmt::format("{}: {}", change.path.string(), strerror(EIO)));
      }
      if (fault.fate == Fate::kRefusedFromThenOn && fault.at > 0 && number >= fault.at) {
        throw StorageError(fmt::format("{}: {}", change.path.string(), strerror(ENOSPC)));
      }
    };
    try {
      const TrainResult result = run(config, ranks, nullptr, probe);
      const bool complete = result.step == config.config.training.steps;
      ::_exit(!complete ? kOther : changes < fault.at ? kFinished : kFinishedAfterFault);
    } catch (const StorageError&) {
      ::_exit(kStorageFailed);
    } catch (...) {
      ::_exit(kOther);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return static_cast<Ending>(WEXITSTATUS(status));
}

struct Scenario {
  const char* name;
  int ranks;
  Fate fate;
  nlohmann::json checkpoint;
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> list;
  for (const int ranks : {1, 2}) {
    for (const bool async : {false, true}) {
      const auto add = [&](const char* name, Fate fate, const char* on_failure, int keep) {
        list.push_back(
            {name,
             ranks,
             fate,
             {{"async", async}, {"interval", 2}, {"keep", keep}, {"on_save_failure", on_failure}}});
      };
      add("killed", Fate::kKilled, "stop", 1);
      add("going on after an error", Fate::kRefusedOnce, "continue", 1);
      if (ranks == 1) {
        add("killed, two kept", Fate::kKilled, "stop", 2);
        add("stopped by an error", Fate::kRefusedOnce, "stop", 1);
        add("going on with a full disk", Fate::kRefusedFromThenOn, "continue", 2);
      }
    }
  }
  return list;
}

/// Two layers' worth of nothing: what counts is that every bit of it comes back.
nlohmann::json changes_of(const Scenario& scenario) {
  return {{"checkpoint", scenario.checkpoint},
          {"zero_optimization", {{"stage", 1}}},
          {"train_batch_size", 4},
          {"model",
           {{"hidden_size", 8},
            {"intermediate_size", 8},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1}}},
          {"training", {{"eval_interval", 0}, {"eval_batches", 1}}}};
}

/// Meets the fault at every change, or one in some, until a run has fewer. Returns how many there
/// were, or a little more.
int survive_every_fault(const Scenario& scenario) {
  constexpr int kSteps = 5;  // saves at 2 and 4, and the last one at 5
  const RunFolder folder;
  const auto config = [&](const char* name) {
    return config_of(folder, name, kSteps, scenario.ranks, changes_of(scenario));
  };
  REQUIRE(run_in_child(config("straight"), scenario.ranks, {}) == kFinishedAfterFault);
  const auto straight = metrics_of(folder, "straight");
  const auto state = state_of(folder, "straight", config("straight"));
  REQUIRE(straight.size() == kSteps);
  for (int at = 1;; at += testing::one_in(3)) {
    CAPTURE(at);
    fs::remove_all(folder.path() / "run");
    const Ending ending = run_in_child(config("run"), scenario.ranks, {scenario.fate, at});
    if (ending == kFinished) {
      return at - 1;
    }
    switch (scenario.fate) {
      case Fate::kKilled:
        REQUIRE(ending == kDied);
        break;
      case Fate::kRefusedOnce:
        REQUIRE((ending == kStorageFailed || ending == kFinishedAfterFault));
        break;
      case Fate::kRefusedFromThenOn:  // until the end, whose save must succeed
        REQUIRE((ending == kStorageFailed || ending == kFinishedAfterFault));
        break;
    }
    const auto unfinished = metrics_of(folder, "run");
    if (scenario.checkpoint["on_save_failure"] == "continue") {
      REQUIRE(unfinished == straight);  // no failed save stopped it before its last step
    }
    REQUIRE(run_in_child(config("run"), scenario.ranks, {}) != kOther);
    REQUIRE(metrics_of(folder, "run") == straight);
    const auto latest = CheckpointStore(folder.path() / "run" / "checkpoints").latest();
    REQUIRE(latest.has_value());
    REQUIRE(latest->filename() == fmt::format("step-{:08}", kSteps));
    REQUIRE(state_of(folder, "run", config("run")) == state);
  }
}

TEST_CASE("a run that dies or fails at any change of a save continues bit for bit",
          "[failure][checkpoint][slow]") {
  // Every child generates its kernels anew, which takes most of its time: let them be small ones.
  REQUIRE(::setenv("ONEDNN_MAX_CPU_ISA", "SSE41", /*replace=*/1) == 0);
  for (const Scenario& scenario : scenarios()) {
    CAPTURE(scenario.name, scenario.ranks, scenario.checkpoint.dump());
    // 3 saves of at least 2 folders' and 3 files' worth of changes.
    CHECK(survive_every_fault(scenario) >= 45);
  }
}

}  // namespace
}  // namespace dstrain::test
