// LongRoPE's keys as Phi-3 and Phi-4 have them on the hub, and what transformers makes of them.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

/// kTinyConfig as a Phi-3 with 4096 original positions of 131072 and heads of 16, half rotated.
LoadedConfig load_phi3(const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {
      "model.model_type=phi3",
      "model.max_position_embeddings=131072",
      "model.original_max_position_embeddings=4096",
      "model.partial_rotary_factor=0.5",
      R"(model.rope_scaling={"type": "longrope", "short_factor": [1, 1.05, 1.1, 1.25],
                             "long_factor": [1.07, 1.25, 2.5, 60.25]})",
      "data.sequence_length=16"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return load_tiny(overrides);
}

std::string error_of_phi3(const std::vector<std::string>& more) {
  return config_error_of([&] { load_phi3(more); });
}

/// What transformers 5.24 says for 131072 positions of 4096: sqrt(1 + ln 32 / ln 4096).
constexpr double kGrowth = 1.1902380714238083;

}  // namespace

TEST_CASE("LongRoPE is read from Phi-3's keys", "[spec][model]") {
  const RopeScaling scaling = load_phi3().config.model.rope_scaling;
  CHECK(scaling.kind == RopeScalingKind::kLongRope);
  CHECK(scaling.original_max_positions == 4096);
  CHECK(scaling.factor == 32.0);
  CHECK(scaling.attention_factor == Approx(kGrowth).epsilon(1e-15).margin(0));
  CHECK(scaling.short_factors == std::vector<double>{1, 1.05, 1.1, 1.25});
  CHECK(scaling.long_factors == std::vector<double>{1.07, 1.25, 2.5, 60.25});
  CHECK_FALSE(scaling.is_long(4096));
  CHECK(scaling.is_long(4097));

  // Its first name, and the newer place; the block may say the original positions too.
  const std::string lists =
      R"("short_factor": [1, 1.05, 1.1, 1.25], "long_factor": [1.07, 1.25, 2.5, 60.25])";
  CHECK(load_phi3({"model.rope_scaling={\"type\": \"su\", " + lists + "}"})
            .config.model.rope_scaling == scaling);
  CHECK(load_phi3({"model.rope_scaling=null",
                   "model.rope_parameters={\"rope_type\": \"longrope\", \"rope_theta\": 10000, "
                   "\"original_max_position_embeddings\": 4096, " +
                       lists + "}"})
            .config.model.rope_scaling == scaling);
  // What is written counts more than what follows from the lengths.
  CHECK(load_phi3({"model.rope_scaling={\"type\": \"longrope\", \"factor\": 1, " + lists + "}"})
            .config.model.rope_scaling.attention_factor == 1.0);
  CHECK(load_phi3({"model.rope_scaling={\"type\": \"longrope\", \"attention_factor\": 1.25, " +
                   lists + "}"})
            .config.model.rope_scaling.attention_factor == 1.25);
  // Where the key beside the block is absent Phi-3 has 4096, whatever else is said.
  CHECK(load_phi3({"model.original_max_position_embeddings=null"})
            .config.model.rope_scaling.original_max_positions == 4096);
}

TEST_CASE("LongRoPE that cannot be is refused", "[spec][model]") {
  const auto scaled = [](const std::string& members) {
    return error_of_phi3({"model.rope_scaling={\"type\": \"longrope\", " + members + "}"});
  };
  CHECK_THAT(
      scaled(R"("short_factor": [1, 1, 1], "long_factor": [1, 1, 1, 1])"),
      Contains("model.rope_scaling.short_factor: must have 4 numbers") && Contains("found 3"));
  CHECK_THAT(scaled(R"("short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 0, 1])"),
             Contains("model.rope_scaling.long_factor: must be a number greater than 0"));
  CHECK_THAT(scaled(R"("short_factor": [1, 1, 1, 1], "long_factor": 2)"),
             Contains("model.rope_scaling.long_factor: must be a list of numbers"));
  CHECK_THAT(scaled(R"("short_factor": [1, 1, 1, 1])"), Contains("\"long_factor\" is missing"));
  CHECK_THAT(scaled(R"("short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1, 1],
                       "original_max_position_embeddings": 64)"),
             Contains("64 contradicts model.original_max_position_embeddings 4096"));
  CHECK_THAT(error_of_phi3({"model.original_max_position_embeddings=1"}),
             Contains("must be at least 2"));
  CHECK_THAT(error_of_tiny({R"(model.rope_scaling={"type": "longrope",
                                "short_factor": [1, 1, 1, 1, 1, 1, 1, 1],
                                "long_factor": [1, 1, 1, 1, 1, 1, 1, 1]})"}),
             Contains("\"original_max_position_embeddings\" is missing"));
}

}  // namespace dstrain
