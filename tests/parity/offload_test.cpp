// Whole runs with the optimizer's states on a disk: the numbers of the run that keeps them in
// memory, also where it is stopped, resumed and moved between the two.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

/// Windows of the smallest size, so that even a tiny model has several.
json on_disk(json zero = json::object()) {
  zero["offload_optimizer"] = {{"device", "nvme"},
                               {"nvme_path", std::filesystem::current_path().string()}};
  zero["sub_group_size"] = 4096;
  return {{"zero_optimization", zero}};
}

json in_memory(const json& zero = json::object()) {
  return {{"zero_optimization", zero}};
}

json zero_of(int stage) {
  json zero{{"stage", stage}};
  if (stage == 3) {
    zero["stage3_param_persistence_threshold"] = 0;
  }
  return zero;
}

void check_same_end(const RunFolder& folder,
                    const std::string& run_of,
                    const std::string& expected,
                    const LoadedConfig& config) {
  auto lines = metrics_of(folder, run_of);
  auto reference = metrics_of(folder, expected);
  for (auto* all : {&lines, &reference}) {
    for (json& line : *all) {
      line.erase("validation_loss");  // where a part of a run ends, it is evaluated too
      line.erase("validation_token_accuracy");
    }
  }
  CHECK(lines == reference);
  CHECK(state_of(folder, run_of, config) == state_of(folder, expected, config));
}

TEST_CASE("a run with states on a disk is the run with states in memory, stopped or not",
          "[parity][offload][resume]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const json formats = GENERATE(
      json::object(), json{{"bf16", {{"enabled", true}}}},
      // The first steps overflow and are skipped.
      json{{"fp16", {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 2}}}},
      json{{"bf16", {{"enabled", true}, {"bf16_optimizer_states", true}}}});
  CAPTURE(stage, formats.dump());
  constexpr int kRanks = 2;
  const RunFolder folder;
  const json memory = merged(formats, in_memory(zero_of(stage)));
  const json disk = merged(formats, on_disk(zero_of(stage)));
  const LoadedConfig config = config_of(folder, "memory", 8, kRanks, memory);
  CHECK(run(config, kRanks).step == 8);
  CHECK(run(config_of(folder, "disk", 8, kRanks, disk), kRanks).step == 8);
  check_same_end(folder, "disk", "memory", config);
  CHECK(run(config_of(folder, "stopped", 5, kRanks, disk), kRanks).step == 5);
  CHECK(run(config_of(folder, "stopped", 8, kRanks, disk), kRanks).step == 8);
  check_same_end(folder, "stopped", "memory", config);
  CHECK(run(config_of(folder, "moved", 3, kRanks, memory), kRanks).step == 3);
  CHECK(run(config_of(folder, "moved", 5, kRanks, disk), kRanks).step == 5);
  CHECK(run(config_of(folder, "moved", 8, kRanks, memory), kRanks).step == 8);
  check_same_end(folder, "moved", "memory", config);
}

TEST_CASE("a run goes on with another share of its states on a disk", "[parity][offload][resume]") {
  const int stage = GENERATE(1, 3);
  const RunFolder folder;
  const json bf16{{"bf16", {{"enabled", true}}}};
  const json memory = merged(bf16, in_memory(zero_of(stage)));
  const auto with_ratio = [&](double ratio) {
    json disk = merged(bf16, on_disk(zero_of(stage)));
    disk["zero_optimization"]["offload_optimizer"]["ratio"] = ratio;
    return disk;
  };
  const LoadedConfig config = config_of(folder, "memory", 6, 2, memory);
  CHECK(run(config, 2).step == 6);
  CHECK(run(config_of(folder, "moved", 2, 2, with_ratio(0.3)), 2).step == 2);
  CHECK(run(config_of(folder, "moved", 4, 2, with_ratio(1.0)), 2).step == 4);
  CHECK(run(config_of(folder, "moved", 6, 2, with_ratio(0.6)), 2).step == 6);
  check_same_end(folder, "moved", "memory", config);
}

TEST_CASE(
    "a run whose parameters are on the disk too is the run with all in memory, stopped or not",
    "[parity][offload][resume]") {
  const json formats = GENERATE(
      json::object(), json{{"bf16", {{"enabled", true}}}},
      json{{"fp16", {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 2}}}},
      json{{"bf16",
            {{"enabled", true},
             {"bf16_master_weights_and_grads", true},
             {"bf16_optimizer_states", true}}}});
  const bool vertical = GENERATE(false, true);
  CAPTURE(formats.dump(), vertical);
  constexpr int kRanks = 2;
  const RunFolder folder;
  json order = merged(formats, {{"training", {{"eval_interval", 2}, {"eval_batches", 1}}}});
  if (vertical) order["training"]["block_order"] = "vertical";
  const json memory = merged(order, in_memory(zero_of(3)));
  json disk = merged(order, on_disk(zero_of(3)));
  disk["zero_optimization"]["offload_param"] = {{"device", "nvme"}};
  const LoadedConfig config = config_of(folder, "memory", 6, kRanks, memory);
  CHECK(run(config, kRanks).step == 6);
  CHECK(run(config_of(folder, "stopped", 4, kRanks, disk), kRanks).step == 4);
  CHECK(run(config_of(folder, "stopped", 6, kRanks, disk), kRanks).step == 6);
  check_same_end(folder, "stopped", "memory", config);
  CHECK(run(config_of(folder, "moved", 2, kRanks, memory), kRanks).step == 2);
  CHECK(run(config_of(folder, "moved", 4, kRanks, disk), kRanks).step == 4);
  CHECK(run(config_of(folder, "moved", 6, kRanks, memory), kRanks).step == 6);
  check_same_end(folder, "moved", "memory", config);
}

TEST_CASE("metrics tell what passed by the disk", "[parity][offload]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "disk", 3, 1, merged({{"bf16", {{"enabled", true}}}}, on_disk())), 1)
            .step == 3);
  std::ifstream in(folder.path() / "disk" / "metrics.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(json::parse(line));
  REQUIRE(lines.size() == 3);
  const json& last = lines.back().at("offload");
  // 28,600 parameters in blocks of the disk: a master and two moments, read and written.
  constexpr std::int64_t kBytes = std::int64_t{28'600} * 12;
  CHECK(last.at("disk_bytes_read").get<std::int64_t>() >= kBytes);
  CHECK(last.at("disk_bytes_read").get<std::int64_t>() < kBytes + 3 * 4096 + 28'600);
  CHECK(last.at("disk_bytes_written") == last.at("disk_bytes_read"));
  CHECK(last.at("seconds").get<double>() > 0.0);
}

TEST_CASE("every optimizer that updates elements alone can have its states on a disk",
          "[parity][offload][resume]") {
  for (const char* type : {"Adam", "SGD", "Adagrad", "RMSprop", "Lion"}) {
    CAPTURE(type);
    json params{{"lr", 3e-3}, {"weight_decay", 0.1}};
    if (std::string(type) == "SGD") params["momentum"] = 0.9;
    if (std::string(type) == "Adam") params["adam_w_mode"] = false;
    const json optimizer{{"bf16", {{"enabled", true}}},
                         {"optimizer", {{"type", type}, {"params", params}}}};
    const RunFolder folder;
    const LoadedConfig config = config_of(folder, "memory", 6, 2, optimizer);
    CHECK(run(config, 2).step == 6);
    CHECK(run(config_of(folder, "disk", 3, 2, merged(optimizer, on_disk())), 2).step == 3);
    CHECK(run(config_of(folder, "disk", 6, 2, merged(optimizer, on_disk())), 2).step == 6);
    check_same_end(folder, "disk", "memory", config);
  }
}

}  // namespace
}  // namespace dstrain::test
