// Runs that find their newest checkpoint damaged, and runs that must not touch those of others.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/config_error.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/resume.h"
#include "engine/train/training_state.h"
#include "tests/harness/captured_log.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain::test {
namespace {

using testing::one_in;

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using testing::CapturedLog;

void flip_byte(const fs::path& path, std::size_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(~file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

void flip_last_byte(const fs::path& path) {
  flip_byte(path, fs::file_size(path) - 1);
}

template <typename Error>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

const nlohmann::json kSharded{{"zero_optimization", {{"stage", 1}}}};

TEST_CASE("damage that only reading shows sends all ranks to the checkpoint before",
          "[parity][resume]") {
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "straight", 10, 2, kSharded);
  CHECK(run(straight, 2).step == 10);
  CHECK(run(config_of(folder, "run", 8, 2, kSharded), 2).step == 8);
  const fs::path checkpoints = folder.path() / "run" / "checkpoints";
  // Rank 0 reads nothing of it: its own slice lies in the other file.
  const fs::path damaged = checkpoints / "step-00000008" / "rank-00001.safetensors";
  flip_last_byte(damaged);
  {
    const CapturedLog log;
    CHECK(run(config_of(folder, "run", 10, 2, kSharded), 2).step == 10);
    CHECK_THAT(log.text(),
               Contains("step-00000008 is skipped because it is damaged: rank 1: ") &&
                   Contains(damaged.string()) && Contains("\"exp_avg_sq/") &&
                   Contains("resumed at step 4 from " + (checkpoints / "step-00000004").string()));
  }
  CHECK(metrics_of(folder, "run") == metrics_of(folder, "straight"));
  CHECK(state_of(folder, "run", straight) == state_of(folder, "straight", straight));
  CHECK(checkpoint_test::read_file(damaged) ==  // replaced on the way
        checkpoint_test::read_file(folder.path() / "straight" / "checkpoints" / "step-00000008" /
                                   "rank-00001.safetensors"));
}

TEST_CASE("a checkpoint that was asked for by path is not exchanged for another", "[resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "run", 8, 2, kSharded), 2).step == 8);
  const fs::path asked = folder.path() / "run" / "checkpoints" / "step-00000008";
  flip_last_byte(asked / "rank-00001.safetensors");
  nlohmann::json changes = kSharded;
  changes["checkpoint"] = {{"resume", asked.string()}};
  const LoadedConfig config = config_of(folder, "run", 9, 2, changes);
  const auto messages = thread_world(2, [&](Rendezvous& rank) {
    return message_of<CheckpointError>(
        [&] { run_training(config, rank, {.threads = 1, .progress = Progress::kNone}); });
  });
  CHECK(messages[0] == messages[1]);
  CHECK_THAT(messages[0], Contains("rank 1: ") && Contains("rank-00001.safetensors"));
}

TEST_CASE("a run whose checkpoints are all damaged does not start anew", "[resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "run", 8, 2, kSharded), 2).step == 8);
  const fs::path checkpoints = folder.path() / "run" / "checkpoints";
  for (const char* step : {"step-00000004", "step-00000008"}) {
    flip_last_byte(checkpoints / step / "rank-00000.safetensors");
  }
  const LoadedConfig more = config_of(folder, "run", 9, 2, kSharded);
  const std::string message = message_of<CheckpointError>([&] { run(more, 2); });
  CHECK_THAT(message, Contains("holds no usable checkpoint") && Contains("step-00000004") &&
                          Contains("step-00000008"));
  CHECK(metrics_of(folder, "run").size() == 8);  // nothing was overwritten
}

TEST_CASE("a damaged checkpoint is neither counted among those to keep nor removed", "[resume]") {
  const RunFolder folder;
  nlohmann::json every_step = kSharded;
  every_step["checkpoint"] = {{"interval", 1}};
  CHECK(run(config_of(folder, "run", 3, 2, every_step), 2).step == 3);
  const fs::path checkpoints = folder.path() / "run" / "checkpoints";
  flip_last_byte(checkpoints / "step-00000003" / "rank-00001.safetensors");
  // From step 2 on; the damaged step 3 is replaced, so look at the moment before.
  const DiskProbe stop_at_step_3 = [&](const DiskChange& change) {
    if (change.path.string().find(".step-00000003.tmp") != std::string::npos) {
      throw StorageError("enough");
    }
  };
  fs::copy(checkpoints / "step-00000003", checkpoints / "step-00000009");  // damaged, and newer
  CHECK_THROWS_AS(run(config_of(folder, "run", 4, 2, every_step), 2, nullptr, stop_at_step_3),
                  StorageError);
  for (const char* name : {"step-00000002", "step-00000003", "step-00000009"}) {
    CHECK(fs::exists(checkpoints / name));
  }
  CHECK(run(config_of(folder, "run", 4, 2, every_step), 2).step == 4);
  for (const char* name : {"step-00000003", "step-00000004", "step-00000009"}) {
    CHECK(fs::exists(checkpoints / name));
  }
  CHECK_FALSE(fs::exists(checkpoints / "step-00000002"));
  CHECK(CheckpointStore(checkpoints).latest() == checkpoints / "step-00000004");
}

TEST_CASE("starting anew in a folder with checkpoints is refused and touches nothing", "[resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "run", 8, 2), 2).step == 8);
  const auto before = metrics_of(folder, "run");
  const LoadedConfig anew = config_of(folder, "run", 4, 2, {{"checkpoint", {{"resume", "never"}}}});
  const std::string message = message_of<ConfigError>([&] { run(anew, 2); });
  CHECK_THAT(message, Contains("checkpoint.resume") && Contains("the newest is step-00000008") &&
                          Contains("training.output_dir"));
  CHECK(metrics_of(folder, "run") == before);
  CHECK(CheckpointStore(folder.path() / "run" / "checkpoints").latest()->filename() ==
        "step-00000008");
  CHECK(run(config_of(folder, "other", 4, 2, {{"checkpoint", {{"resume", "never"}}}}), 2).step ==
        4);
}

TEST_CASE("all ranks say what kept one of them from reading the weights to start from",
          "[parity][resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "teacher", 4, 2, kSharded), 2).step == 4);
  const fs::path weights = folder.path() / "teacher" / "checkpoints" / "step-00000004";
  // Rank 0 of the run to come reads nothing of this file: its own slice lies in the other.
  const fs::path damaged = weights / "rank-00001.safetensors";
  {
    const SafetensorsFile file(damaged);
    for (const auto& [key, entry] : file.tensors()) {
      if (key.starts_with("parameter/")) {
        flip_byte(damaged, file.header().size() + static_cast<std::size_t>(entry.end_byte) - 1);
        break;
      }
    }
  }
  nlohmann::json changes = kSharded;
  changes["model"] = weights.string();
  const LoadedConfig config = config_of(folder, "run", 8, 2, changes);
  const auto messages = thread_world(2, [&](Rendezvous& rank) {
    return message_of<CheckpointError>(
        [&] { run_training(config, rank, {.threads = 1, .progress = Progress::kNone}); });
  });
  CHECK(messages[0] == messages[1]);
  CHECK_THAT(messages[0], Contains("rank 1: " + damaged.string()) && Contains("is damaged"));
}

/// A model of a few hundred parameters.
TinyOptions minute_options() {
  TinyOptions options{.model = tiny_model(Family::kLlama), .micro_batch = 1};
  options.model->vocab_size = 5;
  options.model->hidden_size = 4;
  options.model->num_layers = 1;
  options.model->num_heads = 1;
  options.model->num_key_value_heads = 1;
  options.model->head_dim = 4;
  options.model->intermediate_size = 3;
  return options;
}

TEST_CASE("whichever byte of the newest checkpoint is damaged, resuming takes the one before",
          "[resume][slow]") {
  const checkpoint_test::ScratchFolder folder;
  const TinyOptions options = minute_options();
  LoadedConfig loaded;
  loaded.config = tiny_config(options, 1);
  loaded.config.training.steps = 10;  // one that has all of them would not be read
  const Config& config = loaded.config;
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(config, 1, 0), *world[0], make_cpu_backend(1), 1);
  std::vector<std::vector<HeldPiece>> states;
  for (const int step : {1, 2}) {
    train_tiny_step(engine, options, step);
    CheckpointStore(folder.path())
        .save({.step = step}, state_tensors(engine, StateExtent::kMySlice), 2, engine.world());
    states.push_back(held_state(engine));
  }
  const auto resumed = [&] {
    CheckpointStore store(folder.path());
    const auto from = resume_run(loaded, engine, store, TokenizerMismatch::kRefuse);
    REQUIRE(from.has_value());
    const auto held = held_state(engine);
    const auto& expected = states[static_cast<std::size_t>(from->training.step - 1)];
    for (std::size_t i = 0; i < held.size(); ++i) {
      REQUIRE(held[i].values == expected[i].values);
    }
    return from->training.step;
  };
  const CapturedLog log;
  REQUIRE(resumed() == 2);
  const fs::path newest = folder.path() / "step-00000002";
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(newest)) {
    for (std::uintmax_t at = 0; at < entry.file_size();
         at += static_cast<std::uintmax_t>(one_in(7))) {
      flip_byte(entry.path(), at);
      const std::int64_t step = resumed();
      flip_byte(entry.path(), at);
      if (step != 1) {
        FAIL("byte " << at << " of " << entry.path());
      }
    }
    bytes += entry.file_size();
    for (std::uintmax_t size = 0; size < entry.file_size();
         size += 61 * static_cast<std::uintmax_t>(one_in(3))) {
      const fs::path whole = folder.path() / "whole";
      fs::rename(entry.path(), whole);
      fs::copy_file(whole, entry.path());
      fs::resize_file(entry.path(), size);
      REQUIRE(resumed() == 1);
      fs::rename(whole, entry.path());
    }
  }
  CHECK(bytes > 5'000);
  // `latest` can only choose among whole ones.
  const fs::path latest = folder.path() / "latest";
  for (std::uintmax_t at = 0; at < fs::file_size(latest); ++at) {
    flip_byte(latest, at);
    REQUIRE(resumed() == 2);
    flip_byte(latest, at);
  }
}

}  // namespace
}  // namespace dstrain::test
