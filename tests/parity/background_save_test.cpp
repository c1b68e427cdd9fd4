// Saves that are written beside training: the same checkpoints, at most one at a time, and no
// failure lost.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/state_snapshot.h"
#include "engine/train/training_state.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

json saving_every(int interval, bool async) {
  return {{"zero_optimization", {{"stage", 1}}},
          {"checkpoint", {{"interval", interval}, {"async", async}, {"keep", 9}}}};
}

/// A model with a tensor that is not trained, and changes every step.
const json kBalanced{{"model",
                      {{"model_type", "deepseek_v3"},
                       {"n_routed_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"n_group", 2},
                       {"topk_group", 1},
                       {"moe_intermediate_size", 16},
                       {"first_k_dense_replace", 1},
                       {"q_lora_rank", 12},
                       {"kv_lora_rank", 14},
                       {"qk_nope_head_dim", 6},
                       {"qk_rope_head_dim", 4},
                       {"v_head_dim", 8}}}};

/// Lines of metrics.jsonl, everything in them.
std::vector<json> raw_metrics(const RunFolder& folder, const std::string& output) {
  std::vector<json> lines;
  std::ifstream in(folder.path() / output / "metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    lines.push_back(json::parse(line));
  return lines;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Holds back the file of rank 0 in the checkpoint of a step until it is let go.
class Gate {
 public:
  explicit Gate(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] DiskProbe probe() {
    return [this](const DiskChange& change) {
      if (change.kind == DiskChange::Kind::kCreateFile &&
          change.path.string().find(name_) != std::string::npos) {
        std::unique_lock lock(mutex_);
        reached_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
      }
    };
  }
  void await_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  bool open_ = false;
};

TEST_CASE("checkpoints written beside training are those written in its way, byte for byte",
          "[parity][resume]") {
  const int ranks = GENERATE(1, 2);
  const json model = GENERATE(json::object(), kBalanced);
  const RunFolder folder;
  const auto train = [&](const char* output, bool async) {
    json changes = saving_every(2, async);
    changes.merge_patch(model);
    return run(config_of(folder, output, 7, ranks, changes), ranks).step;
  };
  CHECK(train("sync", false) == 7);
  CHECK(train("async", true) == 7);
  CHECK(metrics_of(folder, "async") == metrics_of(folder, "sync"));
  for (const char* step : {"step-00000002", "step-00000004", "step-00000006", "step-00000007"}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = fmt::format("checkpoints/{}/rank-{:05}.safetensors", step, rank);
      const std::string bytes = content_of(folder.path() / "sync" / file);
      CHECK(bytes.size() > 1000);
      CHECK(content_of(folder.path() / "async" / file) == bytes);
    }
  }
}

TEST_CASE("training continues while a save is written, and the next one waits for it",
          "[parity][resume]") {
  const int ranks = GENERATE(1, 2);
  const RunFolder folder;
  Gate gate(".step-00000003.tmp/rank-00000");
  std::jthread trained([&] {
    run(config_of(folder, "run", 7, ranks, saving_every(3, true)), ranks, nullptr, gate.probe());
  });
  gate.await_reached();
  // Steps 4 to 6 need no checkpoint; the save of step 6 must wait.
  for (int patience = 0; raw_metrics(folder, "run").size() < 6 && patience < 20'000; ++patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  const auto held_back = raw_metrics(folder, "run");
  CHECK(held_back.size() == 6);
  CHECK_FALSE(fs::exists(folder.path() / "run" / "checkpoints" / ".step-00000006.tmp"));
  gate.open();
  trained.join();

  const auto lines = raw_metrics(folder, "run");
  REQUIRE(lines.size() == 7);
  const std::vector<int> saving{0, 0, 0, 1, 1, 1, 1};
  for (std::size_t step = 0; step < 7; ++step) {
    CAPTURE(step);
    CHECK(lines[step]["saving"].get<int>() == saving[step]);
    // Before step 4 the state was copied; before step 7 a save was waited for.
    CHECK((lines[step]["checkpoint_seconds"].get<double>() > 0.0) == (step == 3 || step == 6));
  }
  CHECK(lines[6]["checkpoint_seconds"].get<double>() > 0.05);
  for (const char* step : {"step-00000003", "step-00000006", "step-00000007"}) {
    CHECK(fs::exists(folder.path() / "run" / "checkpoints" / step / "manifest.json"));
  }
}

TEST_CASE("a save that fails beside training stops the run at a step's end, on all ranks",
          "[resume]") {
  const RunFolder folder;
  const LoadedConfig config = config_of(folder, "run", 8, 2, saving_every(2, true));
  const DiskProbe refuse = [](const DiskChange& change) {
    if (change.path.string().find(".step-00000004.tmp/rank-00001") != std::string::npos) {
      throw StorageError(change.path.string() + ": the cable is out");
    }
  };
  const auto messages = thread_world(2, [&](Rendezvous& rank) {
    try {
      run_training(config, rank, {.threads = 1, .progress = Progress::kNone, .disk_probe = refuse});
    } catch (const StorageError& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  CHECK(messages[0] == messages[1]);
  CHECK_THAT(messages[0], Contains("rank 1: ") && Contains("the cable is out"));
  CHECK(CheckpointStore(folder.path() / "run" / "checkpoints").latest()->filename() ==
        "step-00000002");
  const std::size_t steps = metrics_of(folder, "run").size();
  CHECK((steps >= 5 && steps <= 6));  // at the latest before the save that would follow
}

TEST_CASE("a run that continues after failed saves counts them and ends well", "[resume]") {
  const bool async = GENERATE(false, true);
  const RunFolder folder;
  json changes = saving_every(2, async);
  changes["checkpoint"]["on_save_failure"] = "continue";
  const LoadedConfig config = config_of(folder, "run", 8, 2, changes);
  const auto refuse = [](const std::string& step) -> DiskProbe {
    return [step](const DiskChange& change) {
      if (change.kind == DiskChange::Kind::kSyncFile &&
          change.path.string().find(step) != std::string::npos) {
        throw StorageError(change.path.string() + ": no");
      }
    };
  };
  const TrainResult result = run(config, 2, nullptr, refuse(".step-00000004.tmp"));
  CHECK(result.step == 8);
  CHECK(result.failed_saves == 1);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path() / "run" / "checkpoints")) {
    names.insert(entry.path().filename());
  }
  CHECK(names ==
        std::set<std::string>{"latest", "step-00000002", "step-00000006", "step-00000008"});
  // The last save is what a run is for.
  CHECK_THROWS_AS(
      run(config_of(folder, "last", 7, 2, changes), 2, nullptr, refuse(".step-00000007.tmp")),
      StorageError);
}

TEST_CASE("a signal lets the save under way end before the last one", "[resume]") {
  const RunFolder folder;
  Gate gate(".step-00000002.tmp/rank-00000");
  std::atomic<int> signal{0};
  TrainResult result;
  std::jthread trained([&] {
    result =
        run(config_of(folder, "run", 1000, 1, saving_every(2, true)), 1, &signal, gate.probe());
  });
  gate.await_reached();
  signal = SIGTERM;
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  gate.open();
  trained.join();
  CHECK(result.stopped_by == SIGTERM);
  const CheckpointStore store(folder.path() / "run" / "checkpoints");
  CHECK(fs::exists(folder.path() / "run" / "checkpoints" / "step-00000002" / "manifest.json"));
  CHECK(store.latest()->filename() == fmt::format("step-{:08}", result.step));
}

TEST_CASE("a snapshot takes what was planned for it, and holds the state of its moment",
          "[parity][resume]") {
  const int stage = GENERATE(0, 1, 3);
  const TinyOptions options{.precision = GENERATE(Precision::kF32, Precision::kBF16),
                            .zero_stage = stage};
  const Config config = tiny_config(options, 2);
  thread_world(2, [&](Rendezvous& rank) {
    Engine engine(make_run_plan(config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    StateSnapshot snapshot(engine);
    CHECK(snapshot.bytes() == snapshot_bytes(engine.plan()));
    train_tiny_step(engine, options, 0);
    engine.wait_for_communication();
    std::vector<std::string> then;
    std::int64_t bytes = 0;
    for (const auto& tensor : state_tensors(engine, StateExtent::kMySlice)) {
      then.emplace_back(static_cast<const char*>(tensor.data.data()),
                        static_cast<std::size_t>(tensor.data.bytes()));
      bytes += tensor.data.bytes();
    }
    CHECK(snapshot.bytes() >= bytes);
    CHECK(snapshot.bytes() < bytes + 64 * static_cast<std::int64_t>(then.size()));
    const auto copied = snapshot.take(1);
    train_tiny_step(engine, options, 1);
    REQUIRE(copied.size() == then.size());
    for (std::size_t i = 0; i < then.size(); ++i) {
      CHECK(std::string(static_cast<const char*>(copied[i].data.data()), then[i].size()) ==
            then[i]);
    }
    return true;
  });
}

}  // namespace
}  // namespace dstrain::test
