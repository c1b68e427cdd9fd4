// The configs that come with dstrain, on the ranks that they are written for, against what is
// published about their models.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_json.h"
#include "engine/train/run_outline.h"

namespace dstrain::test {
namespace {

Config shipped(const std::string& name, int ranks, const std::vector<std::string>& overrides = {}) {
  LoadedConfig loaded = load_config("configs/" + name + ".json", {.overrides = overrides});
  resolve_config(loaded, ranks);
  return loaded.config;
}

std::int64_t bytes_of(const StageOutline& stage, std::initializer_list<MemoryComponent> parts) {
  std::int64_t bytes = 0;
  for (const MemoryComponent part : parts) {
    bytes += stage.bytes[part];
  }
  return bytes;
}

struct Shipped {
  std::string name;
  std::vector<int> ranks;
  std::int64_t parameters;
};

/// Narayanan et al. 2021, §5: P = 12·l·h²·(1 + 13/(12h) + (V+s)/(12·l·h)), multiplied out;
/// it leaves out the norm behind the last block, whose weight and bias are 2h.
constexpr std::int64_t megatron_parameters(std::int64_t layers,
                                           std::int64_t hidden,
                                           std::int64_t vocabulary,
                                           std::int64_t sequence) {
  return 12 * layers * hidden * hidden + 13 * layers * hidden + (vocabulary + sequence) * hidden;
}

const std::vector<Shipped>& all_shipped() {
  static const std::vector<Shipped> configs = {
      {"quickstart", {1, 2}, 9'540'480},
      {"gpt2-124m", {1, 4, 8}, 124'439'808},
      {"llama-100m", {1, 4, 8}, 100'092'672},
      {"gpt2-xl-zero2", {8, 64}, 1'557'611'200},
      {"sft-qwen3-0.6b", {1, 8}, 596'049'920},
      {"dpo-qwen3-0.6b", {1, 8}, 596'049'920},
      {"grpo-qwen3-0.6b", {1, 8}, 596'049'920},
      {"ppo-qwen3-0.6b", {1, 8}, 596'049'920 + 1024},
      {"lora-llama-3.1-8b", {1, 8}, 8'030'261'248},
      {"qlora-qwen3-8b", {1, 8}, 8'190'735'360},
      {"llama-7b-tp8", {8, 64}, 6'738'415'616},
      {"llama-70b-tp8-pp8", {64, 384, 512}, 68'976'648'192},
      {"gpt-1t-tp8-pp64", {512, 3072}, megatron_parameters(128, 25600, 51200, 2048) + 2 * 25600}};
  return configs;
}

TEST_CASE("every shipped config plans for its ranks, with the published number of parameters",
          "[train][configs]") {
  std::set<std::string> names;
  for (const Shipped& expected : all_shipped()) {
    names.insert(expected.name);
    for (const int ranks : expected.ranks) {
      CAPTURE(expected.name, ranks);
      const Config config = shipped(expected.name, ranks);
      const RunOutline outline = outline_run(config, ranks);
      CHECK(outline.parameters == expected.parameters);
      CHECK(outline.mesh.world_size() == ranks);
      // Chunk i of the model is on stage i mod stages; together they are all blocks in order.
      std::int64_t block = 0;
      for (int chunk = 0; chunk < config.pipeline.virtual_stages; ++chunk) {
        for (const StageOutline& stage : outline.stages) {
          const Range blocks = stage.blocks.at(static_cast<std::size_t>(chunk));
          CHECK(blocks.begin == block);
          block = blocks.end;
        }
      }
      CHECK(block == config.model.num_layers);
      constexpr std::int64_t kLargeAccelerator = 80'000'000'000;
      CHECK(fullest(outline.stages).total_bytes() < kLargeAccelerator);
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    INFO(entry.path());
    CHECK(names.count(entry.path().stem().string()) == 1);
  }
}

TEST_CASE("a stage of the trillion-parameter model holds what is published", "[train][configs]") {
  constexpr double kGiB = 1 << 30;
  const Config config = shipped("gpt-1t-tp8-pp64", 3072, {"zero_optimization.stage=0"});
  const RunOutline outline = outline_run(config, 3072);
  const StageOutline& middle = outline.stages.at(1);  // two blocks and no table
  // 18 bytes for each of 12·l·h²/(t·p): Korthikanti et al. 2022, figure 1, as profiled. Norms and
  // biases, which are not in that, are 0.2 ‰ of it: (6 + 7/t)·h beside 12·h²/t.
  const auto state = static_cast<double>(bytes_of(
      middle,
      {MemoryComponent::kParameters, MemoryComponent::kGradients, MemoryComponent::kOptimizer}));
  CHECK(state / kGiB == Approx(32.958984375).epsilon(3e-4));
  // Their 34·s·b·h/t bytes a layer with sequence parallelism and without attention's s² part
  // (table 2), for the 64 micro-batches in flight of the first stage: 26.5625 GiB. Two of the 34
  // are dropout's masks, and there is no dropout here. Token ids, norms' statistics and
  // log-sum-exps are 1 ‰.
  const StageOutline& first = outline.stages.front();
  CHECK(first.micro_batches_in_flight == 64);
  const std::int64_t activations =
      bytes_of(first, {MemoryComponent::kAttentionActivations, MemoryComponent::kMlpActivations,
                       MemoryComponent::kNormActivations, MemoryComponent::kOtherActivations});
  CHECK(static_cast<double>(activations) / kGiB == Approx(26.5625 * 32 / 34).epsilon(2e-3));
  // (p-1)/(m+p-1).
  CHECK(outline.idle_share == Approx(63.0 / (512 + 63)));
}

}  // namespace
}  // namespace dstrain::test
