#include "tests/harness/resumable_run.h"

#include <algorithm>
#include <fstream>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "kernels/backend.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {

namespace fs = std::filesystem;

// In memory where there is /dev/shm: a run syncs at each save, which would make the tests as slow
// as the disk they happen to run on.
RunFolder::RunFolder()
    : path_((::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path()) /
            ("dstrain-run-" + std::to_string(getpid()))) {
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

RunFolder::~RunFolder() {
  fs::remove_all(path_);
}

LoadedConfig config_of(const RunFolder& folder,
                       const std::string& output,
                       int steps,
                       int ranks,
                       const nlohmann::json& changes) {
  nlohmann::json json{
      {"train_batch_size", 8},
      {"gradient_accumulation_steps", 2},
      {"gradient_clipping", 1.0},
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
  json.merge_patch(changes);
  const fs::path file = folder.path() / (output + ".json");
  std::ofstream(file) << json.dump(2);
  LoadedConfig loaded = load_config(file.string(), {});
  resolve_config(loaded, ranks);
  return loaded;
}

TrainResult run(const LoadedConfig& config,
                int ranks,
                const std::atomic<int>* signal,
                const DiskProbe& probe) {
  const std::unique_ptr<Store> store = make_memory_store();
  const int gpus = std::max(1, static_cast<int>(find_cuda_devices().names.size()));
  return thread_world(ranks,
                      [&](Rendezvous& rank) {
                        return run_training(config, rank,
                                            {.threads = 1,
                                             .gpu = rank.world_rank() % gpus,
                                             .ranks_on_gpu = (ranks + gpus - 1) / gpus,
                                             .store = store.get(),
                                             .progress = Progress::kNone,
                                             .stop_signal = signal,
                                             .disk_probe = probe});
                      })
      .front();
}

std::vector<nlohmann::json> metrics_of(const RunFolder& folder, const std::string& output) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(folder.path() / output / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    for (const char* key : {"time", "step_seconds", "data_seconds", "forward_seconds",
                            "backward_seconds", "optimizer_seconds", "communication_seconds",
                            "checkpoint_seconds", "saving", "tokens_per_second",
                            "model_flops_per_second", "model_flops_utilization", "memory_bytes"}) {
      CHECK(json.erase(key) == 1);
    }
    json.erase("evaluation_seconds");
    json.erase("offload");
    json.erase("devices");  // of GPUs: clocks and watts
    lines.push_back(json);
  }
  return lines;
}

std::vector<std::vector<float>> state_of(const RunFolder& folder,
                                         const std::string& output,
                                         const LoadedConfig& config) {
  const auto world = make_local_rendezvous(1);
  Config single = config.config;  // one rank that holds everything, in f32
  single.batch.micro_batch_size = 1;
  single.zero.stage = 0;
  single.tensor_parallel = {};
  single.pipeline = {};
  single.context_parallel = {};
  single.expert_parallel = {};
  single.formats = {};
  single.offload = {};
  Engine engine(make_run_plan(single, 1, 0), *world[0], make_cpu_backend(1), 1);
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

}  // namespace dstrain::test
