// Sixty configs that users of DeepSpeed have published, with a model, data and a length laid over
// them by --set: which of them run as they are, and why the others do not. Nothing may silently
// move from one class to another.
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/train/memory_estimate.h"
#include "engine/train/micro_batch_choice.h"
#include "tests/harness/program.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/skip.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

constexpr const char* kFixtures = "tests/golden/real-configs.jsonl";
constexpr const char* kBlocks = "tests/golden/deepspeed-blocks.txt";
const MachineFacts kPlainCpu;
const MachineFacts kModernGpu{.cuda = true,
                              .name = "NVIDIA H100 80GB HBM3",
                              .multiplies_bf16 = true,
                              .multiplies_f16 = true,
                              .memory_bytes = std::int64_t{80} << 30};
const MachineFacts kOlderGpu{.cuda = true, .name = "Tesla V100", .multiplies_f16 = true};

struct Fixture {
  std::string name;
  std::string expect;  ///< "accepted", "zenflow"
  int ranks = 1;
  std::string text;
};

std::vector<Fixture> real_configs() {
  std::vector<Fixture> fixtures;
  std::ifstream in(kFixtures);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json fixture = nlohmann::json::parse(line);
    fixtures.push_back({.name = fixture["name"],
                        .expect = fixture["expect"],
                        .ranks = fixture["ranks"],
                        .text = fixture["config"].dump()});
  }
  return fixtures;
}

/// The blocks as printed, separated by lines "---".
std::vector<Fixture> documented_blocks() {
  std::vector<Fixture> blocks;
  std::ifstream in(kBlocks);
  std::string text;
  for (std::string line; std::getline(in, line);) {
    if (line != "---") {
      text += line + "\n";
      continue;
    }
    blocks.push_back({.name = "block-" + std::to_string(blocks.size()), .text = text});
    text.clear();
  }
  blocks.push_back({.name = "block-" + std::to_string(blocks.size()), .text = text});
  return blocks;
}

/// The settings that a Python script would bring.
Strings overlay(const RunFolder& folder, const std::string& name) {
  return {R"(model={"model_type": "llama", "vocab_size": 67, "hidden_size": 16,
                    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "max_position_embeddings": 8})",
          "data.train=" + (folder.path() / "train.bin").string(), "training.steps=2",
          "training.device=cpu", "training.output_dir=" + (folder.path() / name).string()};
}

std::string write(const RunFolder& folder, const Fixture& fixture) {
  const std::string file = (folder.path() / (fixture.name + ".json")).string();
  std::ofstream(file) << fixture.text;
  return file;
}

/// The code path of launch --check --offline.
LoadedConfig accept(const RunFolder& folder,
                    const Fixture& fixture,
                    const MachineFacts& facts,
                    const Strings& changes = {},
                    bool ignore_offload = false) {
  LoadOptions options{.overrides = overlay(folder, fixture.name), .ignore_offload = ignore_offload};
  options.overrides.insert(options.overrides.end(), changes.begin(), changes.end());
  LoadedConfig loaded = load_config(write(folder, fixture), options);
  choose_micro_batch(loaded, fixture.ranks, facts);
  resolve_config(loaded, fixture.ranks, facts);
  return loaded;
}

std::string error_of(const RunFolder& folder,
                     const Fixture& fixture,
                     const MachineFacts& facts = kPlainCpu) {
  try {
    accept(folder, fixture, facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void train_two_steps(const RunFolder& folder, const Fixture& fixture, bool ignore_offload) {
  const LoadedConfig config = accept(folder, fixture, kPlainCpu, {}, ignore_offload);
  run(config, fixture.ranks);
  const std::vector<nlohmann::json> steps = metrics_of(folder, fixture.name);
  REQUIRE(steps.size() == 2);
  CHECK(steps.back()["step"] == 2);
  // A guess over 67 tokens costs ln 67.
  CHECK(steps.back()["loss"].get<double>() == Approx(std::log(67.0)).epsilon(0.1));
}

TEST_CASE("real configs are accepted as they are, or refused for ZenFlow", "[train][configs]") {
  const RunFolder folder;
  std::map<std::string, int> counts;
  for (const Fixture& fixture : real_configs()) {
    INFO(fixture.name << ": " << fixture.text);
    const std::string error = error_of(folder, fixture);
    INFO(error);
    ++counts[fixture.expect];
    if (fixture.expect == "zenflow") {
      CHECK_THAT(error, Contains("--ignore-offload trains without it"));
      CHECK_FALSE(accept(folder, fixture, kPlainCpu, {}, true).warnings.empty());
    } else {
      CHECK(error.empty());
      CHECK(error_of(folder, fixture, kModernGpu) == "");
    }
  }
  CHECK(counts == std::map<std::string, int>{{"accepted", 59}, {"zenflow", 1}});
}

TEST_CASE("real configs that are accepted train", "[train][configs]") {
  const RunFolder folder;
  for (const Fixture& fixture : real_configs()) {
    INFO(fixture.name << ": " << fixture.text);
    train_two_steps(folder, fixture, fixture.expect == "zenflow");
  }
}

TEST_CASE("the blocks that DeepSpeed's guides print train", "[train][configs]") {
  const RunFolder folder;
  const std::vector<Fixture> blocks = documented_blocks();
  CHECK(blocks.size() == 8);
  for (const Fixture& block : blocks) {
    INFO(block.text);
    const bool wants_disk = block.text.find("nvme") != std::string::npos;
    CHECK(error_of(folder, block).empty() != wants_disk);  // parameters on a disk
    train_two_steps(folder, block, wants_disk);
  }
}

TEST_CASE("real configs resolve to something that can be run again, on every machine",
          "[train][configs]") {
  const RunFolder folder;
  for (const MachineFacts& facts : {kPlainCpu, kModernGpu, kOlderGpu}) {
    for (const Fixture& fixture : real_configs()) {
      INFO(fixture.name << ": " << fixture.text);
      const LoadedConfig once = accept(folder, fixture, facts, {}, true);
      for (const ConfigValue& value : once.values) {
        INFO(value.path << " " << value.value);
        CHECK_FALSE(value.origin.empty());
        CHECK((value.value != "\"auto\"" || value.path.starts_with("training.") ||
               value.path == "checkpoint.resume"));
      }
      const Fixture resolved{.name = fixture.name, .ranks = fixture.ranks, .text = to_json(once)};
      const LoadedConfig again = accept(folder, resolved, kPlainCpu);
      CHECK(again.config == once.config);
    }
  }
}

TEST_CASE("a batch that is left open is the largest that the memory holds", "[train][configs]") {
  const auto load = [](const Strings& overrides) {
    Strings all = {"train_batch_size=auto", "train_micro_batch_size_per_gpu=auto",
                   "gradient_accumulation_steps=2"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config("configs/gpt2-124m.json", {.overrides = all});
  };
  // The config as the estimator sees it.
  const auto bytes_with = [&](int micro_batch) {
    const ConfigWith config_with = [&](const Strings&) {
      LoadedConfig loaded = load({"train_micro_batch_size_per_gpu=" + std::to_string(micro_batch)});
      resolve_config(loaded, 4);
      return loaded;
    };
    return estimate_memory(config_with, 4, {}, std::nullopt).bytes();
  };
  const auto chosen = [&](std::optional<std::int64_t> memory_bytes) {
    LoadedConfig loaded = load({});
    const MachineFacts facts{.memory_bytes = memory_bytes};
    choose_micro_batch(loaded, 4, facts);
    resolve_config(loaded, 4, facts);
    CHECK(loaded.config.batch.train_batch_size == 8 * *loaded.config.batch.micro_batch_size);
    return loaded;
  };
  CHECK(chosen(std::nullopt).config.batch.micro_batch_size == 8);
  CHECK(chosen(bytes_with(8)).config.batch.micro_batch_size == 8);
  CHECK(chosen(bytes_with(8) - 1).config.batch.micro_batch_size == 4);
  CHECK(chosen(bytes_with(2)).config.batch.micro_batch_size == 2);
  CHECK(chosen(1).config.batch.micro_batch_size == 1);  // which the memory check refuses
  const LoadedConfig told = chosen(bytes_with(4));
  for (const ConfigValue& value : told.values) {
    if (value.path != "train_micro_batch_size_per_gpu") continue;
    CHECK(value.value == "4");
    CHECK_THAT(value.origin, Catch::StartsWith("derived: the largest power of two up to 8"));
  }
  CHECK_THAT(told.notices.back() + told.notices.front(),
             Contains("the config says neither it nor train_batch_size"));
}

TEST_CASE("the program checks real configs, and names the flag that leaves ZenFlow out",
          "[train][configs]") {
  if (testing::no_dstrain_here()) return;
  const RunFolder folder;
  const auto check = [&](const Fixture& fixture, const Strings& flags) {
    Strings argv = {testing::dstrain_binary(), "launch", "--check", "--offline",
                    write(folder, fixture)};
    for (const std::string& change : overlay(folder, fixture.name))
      argv.push_back("--set=" + change);
    argv.insert(argv.end(), flags.begin(), flags.end());
    testing::Program program(argv);
    constexpr std::chrono::milliseconds kPatience{20'000};
    const int code = program.wait(kPatience).value();
    return std::pair(code, program.err());
  };
  const std::vector<Fixture> fixtures = real_configs();
  CHECK(check(fixtures.at(1), {}).first == 0);  // GPT-NeoX's
  const Fixture& zenflow = fixtures.at(29);
  const auto [refused, why] = check(zenflow, {});
  CHECK(refused == 2);
  CHECK_THAT(why, Contains("--ignore-offload"));
  const auto [accepted, told] = check(zenflow, {"--ignore-offload"});
  CHECK(accepted == 0);
  CHECK_THAT(told, Contains("not done: zero_optimization.offload_optimizer.device"));
}

}  // namespace
}  // namespace dstrain::test
