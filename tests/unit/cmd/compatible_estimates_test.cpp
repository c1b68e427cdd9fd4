// Estimates beside those of the real tools, which wrote tests/golden/memory_estimators.json
// (scripts/make_estimator_golden.py): every byte and every printed character.
#include "cmd/memory/compatible_estimates.h"

#include <fstream>

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using nlohmann::json;

json read_golden() {
  return json::parse(std::ifstream("tests/golden/memory_estimators.json"));
}

/// The model as a config.json gives it. Sequences are short enough for any sliding window.
ModelSpec model_of(const json& entry) {
  return load_tiny({"model=" + entry.at("config").dump(), "data.sequence_length=16"}).config.model;
}

DeepSpeedHardware hardware_of(const json& setup) {
  return {.gpus_per_node = setup.at("num_gpus_per_node"),
          .nodes = setup.at("num_nodes"),
          .additional_buffer_factor = setup.at("additional_buffer_factor")};
}

}  // namespace

TEST_CASE("every row of DeepSpeed's ZeRO-2 and ZeRO-3 estimators is theirs to the byte",
          "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("cold").size() == 8);
  for (const json& setup : golden.at("cold")) {
    const DeepSpeedHardware hardware = hardware_of(setup);
    const DeepSpeedModelSize size = {setup.at("total_params"), setup.at("largest_layer_params")};
    INFO(size.total_params << " on " << hardware.nodes << " × " << hardware.gpus_per_node);

    std::vector<DeepSpeedEstimate> zero2;
    for (const json& row : setup.at("zero2")) {
      zero2.push_back(
          {.offload_optimizer = row.at(0), .cpu_bytes = row.at(1), .gpu_bytes = row.at(2)});
    }
    REQUIRE(zero2.size() == 2);
    CHECK(deepspeed_zero2_estimates(size.total_params, hardware) == zero2);

    std::vector<DeepSpeedEstimate> zero3;
    for (const json& row : setup.at("zero3")) {
      zero3.push_back({.offload_optimizer = row.at(0),
                       .offload_param = row.at(1),
                       .zero_init = row.at(2),
                       .cpu_bytes = row.at(3),
                       .gpu_bytes = row.at(4)});
    }
    REQUIRE(zero3.size() == 6);
    CHECK(deepspeed_zero3_estimates(size, hardware) == zero3);
  }
}

TEST_CASE("DeepSpeed's tables come out letter for letter", "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE_FALSE(golden.at("cold").empty());
  for (const json& setup : golden.at("cold")) {
    const DeepSpeedHardware hardware = hardware_of(setup);
    const DeepSpeedModelSize size = {setup.at("total_params"), setup.at("largest_layer_params")};
    CHECK(deepspeed_zero2_text(size.total_params, hardware) ==
          setup.at("zero2_text").get<std::string>());
    CHECK(deepspeed_zero3_text(size, hardware) == setup.at("zero3_text").get<std::string>());
  }
}

TEST_CASE("the examples of DeepSpeed's documentation come out as printed there", "[memory]") {
  // deepspeed.readthedocs.io, "Memory Requirements": a T5 of 2851 million on a node of 8. (Its
  // ZeRO-2 example has 15.93 GB a GPU without offload, by a formula that DeepSpeed has replaced.)
  const std::string text = deepspeed_zero3_text({2'851'000'000, 32'000'000}, {.gpus_per_node = 8});
  CHECK(text ==
        "Estimated memory needed for params, optim states and gradients for a:\n"
        "HW: Setup with 1 node, 8 GPUs per node.\n"
        "SW: Model with 2851M total params, 32M largest layer params.\n"
        "  per CPU  |  per GPU |   Options\n"
        "   71.69GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
        "  127.45GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
        "   63.72GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
        "  127.45GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
        "    1.43GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
        "  127.45GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=0\n");

  // There too, in MiB: t5-large's 737.67 million, 32.90 million in a layer, on 4 GPUs.
  const auto large = deepspeed_zero3_estimates({737'668'096, 32'899'072}, {.gpus_per_node = 4});
  CHECK(large[4].gpu_bytes >> 20 == 3291);
  CHECK(large[0].gpu_bytes >> 20 == 125);
  CHECK(large[2].gpu_bytes >> 20 == 477);
}

TEST_CASE("models have the parameters and the largest module that DeepSpeed finds in them",
          "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("models").size() == 11);
  for (const json& entry : golden.at("models")) {
    INFO(entry.at("name"));
    const json& theirs = entry.at("deepspeed");
    const DeepSpeedModelSize size = deepspeed_model_size(model_of(entry));
    CHECK(size.total_params == theirs.at("total_params"));
    CHECK(size.largest_layer_params == theirs.at("largest_layer_params"));
    const DeepSpeedHardware hardware = {.gpus_per_node = 8, .nodes = 2};
    CHECK(deepspeed_zero2_text(size.total_params, hardware) ==
          theirs.at("zero2_text_8x2").get<std::string>());
    CHECK(deepspeed_zero3_text(size, hardware) == theirs.at("zero3_text_8x2").get<std::string>());
  }
}

TEST_CASE("accelerate's rows are reproduced to the byte", "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE_FALSE(golden.at("models").empty());
  for (const json& entry : golden.at("models")) {
    INFO(entry.at("name"));
    const json& theirs = entry.at("accelerate");
    const std::vector<HuggingFaceEstimate> rows = huggingface_estimates(model_of(entry));
    REQUIRE(rows.size() == theirs.at("rows").size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const json& row = theirs.at("rows")[i];
      CHECK(rows[i].dtype == row.at(0).get<std::string>());
      const auto divided = [&](std::int64_t bytes) {
        return static_cast<double>(bytes) / rows[i].divisor;
      };
      CHECK(divided(rows[i].float32_largest_layer_bytes) == row.at(1).get<double>());
      CHECK(divided(rows[i].float32_total_bytes) == row.at(2).get<double>());
      const HuggingFaceTraining none = {-1, -1, -1, -1};  // what they return for "N/A"
      const auto training_of = [](const json& parts) -> HuggingFaceTraining {
        return {parts.at("model"), parts.at("gradients"), parts.at("optimizer"), parts.at("step")};
      };
      CHECK(rows[i].training.value_or(none) == training_of(row.at(3)));
      if (rows[i].dtype == "float16") {
        CHECK(rows[i].training == training_of(theirs.at("bfloat16_training")));
      }
    }
  }
}

TEST_CASE("accelerate's table comes out letter for letter", "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE_FALSE(golden.at("models").empty());
  for (const json& entry : golden.at("models")) {
    const std::string table =
        huggingface_text(entry.at("name"), huggingface_estimates(model_of(entry)));
    CHECK(table == entry.at("accelerate").at("text").get<std::string>());
  }
}

TEST_CASE("sizes are rounded and named as accelerate does", "[memory][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("sizes").size() == 76);
  for (const json& size : golden.at("sizes")) {
    INFO(size);
    CHECK(huggingface_size(size.at(0), size.at(1)) == size.at(2).get<std::string>());
  }
}

TEST_CASE("estimates of no GPUs are refused", "[memory]") {
  CHECK_THROWS_AS(deepspeed_zero2_estimates(7, {.gpus_per_node = 0}), InternalError);
  CHECK_THROWS_AS(deepspeed_zero3_estimates({7, 3}, {.nodes = 0}), InternalError);
}

}  // namespace dstrain
