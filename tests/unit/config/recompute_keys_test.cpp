// What "activation_checkpointing" may contain: dstrain's two keys, and DeepSpeed's, which do not
// turn recomputation on.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> recompute(const std::string& block) {
  return {"activation_checkpointing=" + block};
}

}  // namespace

TEST_CASE("recomputation has three granularities, and is off unless asked for",
          "[spec][recompute]") {
  CHECK(load_tiny({}).config.recompute == RecomputeConfig{});
  CHECK(load_tiny(recompute(R"({"granularity": "none"})")).config.recompute == RecomputeConfig{});
  CHECK(load_tiny(recompute(R"({"granularity": "auto"})")).config.recompute == RecomputeConfig{});
  const LoadedConfig selective = load_tiny(recompute(R"({"granularity": "selective"})"));
  CHECK(selective.config.recompute ==
        RecomputeConfig{.granularity = RecomputeGranularity::kSelective, .layers = std::nullopt});
  CHECK(selective.notices.empty());
  CHECK(load_tiny(recompute(R"({"granularity": "full", "layers": 2})")).config.recompute ==
        RecomputeConfig{.granularity = RecomputeGranularity::kFull, .layers = 2});
  CHECK_THAT(error_of_tiny(recompute(R"({"granularity": "block"})")),
             Contains("must be \"none\", \"selective\" or \"full\""));
}

TEST_CASE("the first so many blocks recompute", "[spec][recompute]") {
  const RecomputeConfig one{.granularity = RecomputeGranularity::kFull, .layers = 1};
  CHECK(one.of_block(0) == RecomputeGranularity::kFull);
  CHECK(one.of_block(1) == RecomputeGranularity::kNone);
  const RecomputeConfig all{.granularity = RecomputeGranularity::kSelective, .layers = {}};
  CHECK(all.of_block(1000) == RecomputeGranularity::kSelective);
}

TEST_CASE("layers counts blocks that the model has, and needs a granularity", "[spec][recompute]") {
  CHECK_THAT(error_of_tiny(recompute(R"({"granularity": "full", "layers": 3})")),
             Contains("activation_checkpointing.layers: must be at most 2, the number of the "
                      "model's blocks, found 3"));
  CHECK_THAT(error_of_tiny(recompute(R"({"granularity": "full", "layers": 0})")),
             Contains("of at least 1, found 0"));
  const LoadedConfig off = load_tiny(recompute(R"({"layers": 1})"));
  CHECK(off.config.recompute == RecomputeConfig{});
  REQUIRE(off.notices.size() == 1);
  CHECK(off.notices[0] ==
        "no effect: activation_checkpointing.layers: granularity is \"none\": no block "
        "recomputes");
}

TEST_CASE("DeepSpeed's keys of the block do not turn it on, and say why", "[spec][recompute]") {
  const LoadedConfig loaded = load_tiny(recompute(
      R"({"partition_activations": false, "cpu_checkpointing": false, "number_checkpoints": 4,
          "contiguous_memory_optimization": true, "synchronize_checkpoint_boundary": false,
          "profile": false})"));
  CHECK(loaded.config.recompute == RecomputeConfig{});
  std::string notices;
  for (const std::string& notice : loaded.notices) {
    CHECK_THAT(notice, Catch::StartsWith("no effect: activation_checkpointing."));
    notices += notice + "\n";
  }
  CHECK_THAT(notices, Contains("number_checkpoints: granularity and layers say"));
}

TEST_CASE("cpu_checkpointing is read as DeepSpeed reads it", "[spec][recompute]") {
  const LoadedConfig on =
      load_tiny(recompute(R"({"granularity": "full", "layers": 1, "cpu_checkpointing": true})"));
  CHECK(on.config.recompute.keeps_input_on_host(0));
  CHECK_FALSE(on.config.recompute.keeps_input_on_host(1));
  CHECK_FALSE(
      load_tiny(recompute(R"({"cpu_checkpointing": null})")).config.recompute.inputs_on_host);
}

TEST_CASE("partition_activations is read as DeepSpeed reads it", "[spec][recompute]") {
  for (const char* const off : {"false", "null", "\"auto\""}) {
    const LoadedConfig loaded =
        load_tiny(recompute(fmt::format(R"({{"partition_activations": {}}})", off)));
    CHECK_FALSE(loaded.config.recompute.partitions_inputs);
    CHECK(loaded.notices.empty());
  }
  const LoadedConfig on = load_tiny(
      recompute(R"({"granularity": "full", "layers": 1, "partition_activations": true})"));
  CHECK(on.config.recompute.partitions_input_of(0));
  CHECK_FALSE(on.config.recompute.partitions_input_of(1));
  CHECK_THAT(error_of_tiny(recompute(R"({"partition_activations": 3})")),
             Contains("activation_checkpointing.partition_activations: must be true or false"));
}

}  // namespace dstrain
