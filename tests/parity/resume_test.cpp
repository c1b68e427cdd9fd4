// Saving and resuming must not change a bit of the run that follows.
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"
#include "engine/train/run_training.h"
#include "engine/train/training_state.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;

/// A folder with token files, removed at the end.
class RunFolder {
 public:
  RunFolder() : path_(fs::temp_directory_path() / ("dstrain-resume-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const char* name : {"train.bin", "validation.bin"}) {
      std::vector<std::int32_t> inputs(3000);
      std::vector<std::int32_t> targets(3000);
      synthetic_sample(name[0], 67, inputs, targets);
      std::ofstream out(path_ / name, std::ios::binary);
      for (const std::int32_t token : inputs) {
        const auto id = static_cast<std::uint16_t>(token);
        out.write(reinterpret_cast<const char*>(&id), sizeof(id));
      }
    }
  }
  ~RunFolder() { fs::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

LoadedConfig config_of(const RunFolder& folder,
                       const std::string& output,
                       int steps,
                       int ranks,
                       const std::string& precision) {
  const nlohmann::json json{
      {"train_batch_size", 8},
      {"gradient_accumulation_steps", 2},
      {"gradient_clipping", 1.0},
      {"bf16", {{"enabled", precision == "bf16"}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 3e-3}, {"weight_decay", 0.1}}}}},
      {"scheduler",
       {{"type", "WarmupCosineLR"},
        {"params", {{"total_num_steps", 8}, {"warmup_num_steps", 3}, {"warmup_type", "linear"}}}}},
      {"model",
       {{"model_type", "llama"},
        {"vocab_size", 67},
        {"hidden_size", 40},
        {"intermediate_size", 56},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 4},
        {"num_key_value_heads", 2},
        {"max_position_embeddings", 32}}},
      {"data",
       {{"train", (folder.path() / "train.bin").string()},
        {"validation", (folder.path() / "validation.bin").string()},
        {"sequence_length", 19}}},
      {"training",
       {{"steps", steps},
        {"eval_interval", 2},
        {"eval_batches", 2},
        {"device", "cpu"},
        {"output_dir", (folder.path() / output).string()}}},
      {"checkpoint", {{"interval", 4}, {"keep", 2}, {"resume", "auto"}}}};
  const fs::path file = folder.path() / (output + ".json");
  std::ofstream(file) << json.dump(2);
  LoadedConfig loaded = load_config(file.string(), {});
  resolve_config(loaded, ranks);
  return loaded;
}

TrainResult run(const LoadedConfig& config, int ranks, const std::atomic<int>* signal = nullptr) {
  return thread_world(ranks,
                      [&](Rendezvous& rank) {
                        return run_training(
                            config, rank,
                            {.threads = 1, .progress = Progress::kNone, .stop_signal = signal});
                      })
      .front();
}

/// step → its metrics without clocks and memory.
std::vector<nlohmann::json> metrics_of(const RunFolder& folder, const std::string& output) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(folder.path() / output / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    for (const char* key : {"step_seconds", "tokens_per_second", "model_flops_per_second",
                            "model_flops_utilization", "memory_bytes"}) {
      CHECK(json.erase(key) == 1);
    }
    lines.push_back(json);
  }
  return lines;
}

/// Master, m and v of the newest checkpoint.
std::vector<std::vector<float>> state_of(const RunFolder& folder,
                                         const std::string& output,
                                         const LoadedConfig& config) {
  const auto world = make_local_rendezvous(1);
  Config single = config.config;
  single.batch.micro_batch_size = 1;
  Engine engine(single, *world[0], make_cpu_backend(1), 1);
  const auto tensors = state_tensors(engine, StateExtent::kEverything);
  const auto latest = CheckpointStore(folder.path() / output / "checkpoints").latest();
  REQUIRE(latest);
  CheckpointStore::load(*latest, tensors);
  std::vector<std::vector<float>> values;
  for (const CheckpointTensor& tensor : tensors) {
    const auto span = tensor.data.as<float>();
    values.emplace_back(span.begin(), span.end());
  }
  return values;
}

TEST_CASE("resuming gives the bits of the uninterrupted run", "[parity][resume]") {
  const int ranks = GENERATE(1, 2);
  const std::string precision = GENERATE("fp32", "bf16");
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "straight", 8, ranks, precision);
  CHECK(run(straight, ranks).step == 8);

  CHECK(run(config_of(folder, "parts", 5, ranks, precision), ranks).step == 5);
  CHECK(run(config_of(folder, "parts", 8, ranks, precision), ranks).step == 8);

  auto parts = metrics_of(folder, "parts");
  auto whole = metrics_of(folder, "straight");
  REQUIRE(parts.size() == 8);
  REQUIRE(whole.size() == 8);
  CHECK(parts[4].erase("validation_loss") == 1);  // the first part evaluated at its own end
  CHECK(parts == whole);
  CHECK(state_of(folder, "parts", straight) == state_of(folder, "straight", straight));
}

TEST_CASE("a signal finishes the step, saves, and the run goes on from there", "[parity][resume]") {
  const RunFolder folder;
  const LoadedConfig config = config_of(folder, "stopped", 8, 2, "fp32");
  const std::atomic<int> signal{SIGTERM};
  const TrainResult stopped = run(config, 2, &signal);
  CHECK(stopped.step == 1);
  CHECK(stopped.stopped_by == SIGTERM);
  CHECK(run(config, 2).step == 8);

  const LoadedConfig straight = config_of(folder, "straight", 8, 2, "fp32");
  CHECK(run(straight, 2).step == 8);
  CHECK(metrics_of(folder, "stopped") == metrics_of(folder, "straight"));
  CHECK(state_of(folder, "stopped", config) == state_of(folder, "straight", straight));
}

TEST_CASE("a run that lost steps after its last checkpoint repeats them and says each once",
          "[parity][resume]") {
  const RunFolder folder;
  const LoadedConfig config = config_of(folder, "crashed", 8, 1, "fp32");
  CHECK(run(config, 1).step == 8);
  const auto before = metrics_of(folder, "crashed");
  // As after a crash at step 8: the newest checkpoint is step 4's.
  fs::remove_all(folder.path() / "crashed" / "checkpoints" / "step-00000008");
  CHECK(run(config, 1).step == 8);
  CHECK(metrics_of(folder, "crashed") == before);
}

TEST_CASE("a checkpoint of a larger model is refused, not resumed in part", "[resume]") {
  const RunFolder folder;
  LoadedConfig config = config_of(folder, "other", 1, 1, "fp32");
  config.config.model.num_layers = 3;
  CHECK(run(config, 1).step == 1);
  CHECK_THROWS_MATCHES(
      run(config_of(folder, "other", 2, 1, "fp32"), 1), CheckpointError,
      Catch::Matchers::Predicate<CheckpointError>([](const CheckpointError& error) {
        return std::string(error.what()).find("blocks.2.") != std::string::npos;
      }));
}

TEST_CASE("a run that diverges stops, names the tensor, and saves nothing of it", "[resume]") {
  const RunFolder folder;
  LoadedConfig config = config_of(folder, "diverged", 8, 2, "fp32");
  config.config.optimizer.learning_rate = 1e30;
  CHECK_THROWS_MATCHES(run(config, 2), NumericalError,
                       Catch::Matchers::Predicate<NumericalError>([](const NumericalError& error) {
                         const std::string what = error.what();
                         return what.find("first in the gradient of ") != std::string::npos &&
                                what.find("there is no checkpoint yet") != std::string::npos;
                       }));
  CHECK_FALSE(fs::exists(folder.path() / "diverged" / "checkpoints"));
}

TEST_CASE("two ranks resume what one rank saved", "[parity][resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "reshaped", 4, 1, "fp32"), 1).step == 4);
  CHECK(run(config_of(folder, "reshaped", 8, 2, "fp32"), 2).step == 8);
  CHECK(run(config_of(folder, "straight", 8, 1, "fp32"), 1).step == 8);
  const auto reshaped = metrics_of(folder, "reshaped");
  const auto straight = metrics_of(folder, "straight");
  REQUIRE(reshaped.size() == 8);
  for (std::size_t step = 0; step < 8; ++step) {
    CHECK(reshaped[step]["loss"].get<double>() ==
          Approx(straight[step]["loss"].get<double>()).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace dstrain::test
