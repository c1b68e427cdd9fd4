// Stopping and resuming in every ZeRO stage and number format, and changing the stage in between.
#include <catch2/catch.hpp>

#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

/// Every unit of the tiny model is cut and gathered.
json stage(int number) {
  json zero{{"stage", number}};
  if (number == 3) {
    zero["stage3_param_persistence_threshold"] = 0;
  }
  return {{"zero_optimization", zero}};
}

void check_resuming_is_exact(int ranks, const json& changes) {
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "straight", 8, ranks, changes);
  CHECK(run(straight, ranks).step == 8);
  CHECK(run(config_of(folder, "parts", 5, ranks, changes), ranks).step == 5);
  CHECK(run(config_of(folder, "parts", 8, ranks, changes), ranks).step == 8);
  auto parts = metrics_of(folder, "parts");
  const auto whole = metrics_of(folder, "straight");
  REQUIRE(parts.size() == 8);
  CHECK(parts[4].erase("validation_loss") == 1);  // the first part evaluated at its own end
  CHECK(parts[4].erase("validation_token_accuracy") == 1);
  CHECK(parts == whole);
  CHECK(state_of(folder, "parts", straight) == state_of(folder, "straight", straight));
}

TEST_CASE("resuming gives the bits of the uninterrupted run in every stage and format",
          "[parity][zero][resume]") {
  const int number = GENERATE(0, 1, 2, 3);
  const json formats = GENERATE(
      json::object(), json{{"bf16", {{"enabled", true}}}},
      // 20: the scale is still being looked for when the run stops.
      json{{"fp16", {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 2}}}},
      json{{"bf16", {{"enabled", true}, {"bf16_optimizer_states", true}}}},
      json{{"bf16",
            {{"enabled", true},
             {"bf16_optimizer_states", true},
             {"bf16_master_weights_and_grads", true}}}});
  CAPTURE(number, formats.dump());
  check_resuming_is_exact(2, merged(formats, stage(number)));
}

TEST_CASE("resuming is exact with coded traffic, and in groups of ranks",
          "[parity][zero][resume]") {
  const json zero{
      {"stage", 3}, {"stage3_param_persistence_threshold", 0}, {"zero_quantized_weights", true}};
  const json more =
      GENERATE(json::object(), json{{"zero_hpz_partition_size", 2}}, json{{"mics_shard_size", 2}},
               json{{"zero_hpz_partition_size", 2}, {"zero_quantized_gradients", true}});
  const json formats = GENERATE(json::object(), json{{"bf16", {{"enabled", true}}}});
  CAPTURE(more.dump(), formats.dump());
  check_resuming_is_exact(4, merged(formats, {{"zero_optimization", merged(zero, more)}}));
}

TEST_CASE("resuming is exact with every optimizer under sharding", "[parity][zero][resume]") {
  for (const char* type : {"Adam", "SGD", "Adagrad", "RMSprop", "Lion", "Lamb", "Muon"}) {
    CAPTURE(type);
    json params{{"lr", 3e-3}, {"weight_decay", 0.1}};
    if (std::string(type) == "SGD") {
      params["momentum"] = 0.9;
    }
    if (std::string(type) == "Adam") {
      params["adam_w_mode"] = false;
    }
    // Whole, so that no key of the harness's AdamW is left.
    check_resuming_is_exact(
        4, merged(stage(3), {{"optimizer", {{"type", type}, {"params", params}}}}));
  }
}

TEST_CASE("a checkpoint of one stage resumes in another", "[parity][zero][resume]") {
  const json no_clipping{{"gradient_clipping", 0.0}};
  const RunFolder folder;
  std::vector<std::vector<json>> straight;
  std::vector<std::vector<std::vector<float>>> ends;
  const auto changes = [&](int number) { return merged(no_clipping, stage(number)); };
  for (const int number : {0, 1, 2, 3}) {
    const std::string name = "straight" + std::to_string(number);
    const LoadedConfig config = config_of(folder, name, 8, 2, changes(number));
    CHECK(run(config, 2).step == 8);
    straight.push_back(metrics_of(folder, name));
    ends.push_back(state_of(folder, name, config));
  }
  for (const int from : {0, 1, 2, 3}) {
    for (const int to : {0, 1, 2, 3}) {
      CAPTURE(from, to);
      const std::string name = std::to_string(from) + "to" + std::to_string(to);
      CHECK(run(config_of(folder, name, 4, 2, changes(from)), 2).step == 4);
      const LoadedConfig second = config_of(folder, name, 8, 2, changes(to));
      CHECK(run(second, 2).step == 8);
      const auto lines = metrics_of(folder, name);
      REQUIRE(lines.size() == 8);
      for (std::size_t step = 0; step < 8; ++step) {
        CHECK(lines[step]["loss"].get<double>() ==
              Approx(straight[0][step]["loss"].get<double>()).epsilon(1e-6));
      }
      if (from / 2 == to / 2) {  // stages 0 and 1, or 2 and 3, give the same bits
        CHECK(state_of(folder, name, second) == ends[static_cast<std::size_t>(from)]);
      }
    }
  }
}

TEST_CASE("four ranks resume in stage 3 what two saved in stage 1", "[parity][zero][resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "reshaped", 4, 2, stage(1)), 2).step == 4);
  CHECK(run(config_of(folder, "reshaped", 8, 4, stage(3)), 4).step == 8);
  CHECK(run(config_of(folder, "straight", 8, 2, stage(1)), 2).step == 8);
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
