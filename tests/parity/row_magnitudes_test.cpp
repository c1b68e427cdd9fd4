// Rows with magnitudes of their own beside adapters (DoRA), adapters that drop of what they read,
// and noise of embeddings (NEFTune): they begin as the model without them, every layout follows one
// rank, and runs go on as if they had not stopped. What they equal from outside:
// scripts/check_adapters.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/adapters.h"
#include "tests/parity/adapted_runs.h"
#include "tests/parity/partly_trained.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

json with_magnitudes(const AdaptedRuns& runs, double dropout = 0.0) {
  return merged(runs.adapters(), {{"peft", {{"use_dora", true}, {"lora_dropout", dropout}}}});
}

TEST_CASE("rows begin with the magnitudes that they have", "[parity][magnitude]") {
  const AdaptedRuns runs;
  const std::vector<json> plain = runs.train("plain", 4, 1, runs.adapters());
  const std::vector<json> scaled = runs.train("scaled", 4, 1, with_magnitudes(runs));
  CHECK(scaled.front().at("loss").get<double>() ==
        Approx(plain.front().at("loss").get<double>()).epsilon(1e-6));
  CHECK(scaled.back().at("loss") != plain.back().at("loss"));
}

TEST_CASE("rows with magnitudes follow one rank in every layout", "[parity][magnitude]") {
  const AdaptedRuns runs;
  runs.check_layouts(with_magnitudes(runs));
}

TEST_CASE("rows with magnitudes beside weights in 4 bits follow one rank", "[parity][magnitude]") {
  const AdaptedRuns runs;
  runs.check_layouts(
      merged(with_magnitudes(runs, 0.2), {{"quantization_config", {{"load_in_4bit", true}}}}));
}

TEST_CASE("some rows have magnitudes, and others of the same product none", "[parity][magnitude]") {
  const AdaptedRuns runs;
  runs.check_layouts(merged(with_magnitudes(runs),
                            {{"peft", {{"target_modules", {"q_proj", "v_proj", "o_proj"}}}}}));
}

TEST_CASE("runs with magnitudes, dropout and noise go on as if they had not stopped",
          "[parity][magnitude]") {
  const AdaptedRuns runs;
  runs.check_resume(
      merged(with_magnitudes(runs, 0.2), {{"bf16", {{"enabled", true}}},
                                          {"zero_optimization", {{"stage", 3}}},
                                          {"training", {{"neftune_noise_alpha", 5.0}}}}));
}

TEST_CASE(
    "rows with magnitudes are merged where the plain model is asked for, and written as PEFT's",
    "[parity][magnitude]") {
  const AdaptedRuns runs;
  const auto last_loss = [](const std::vector<json>& lines) {
    return lines.back().at("validation_loss").get<double>();
  };
  const auto convert = [&](const std::string& from, const std::string& to, TargetFormat format,
                           const std::string& adapter = "") {
    ConversionRequest request{.from = runs.path(from), .to = runs.path(to), .format = format};
    if (!adapter.empty()) request.merge_adapter = runs.path(adapter);
    convert_checkpoint(request, {});
    std::ifstream file(runs.path(to) + "/model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const json faster = {{"optimizer", {{"params", {{"lr", 0.05}}}}}};
  const double trained =
      last_loss(runs.train("scaled", 6, 1, merged(with_magnitudes(runs), faster)));
  const std::string whole = convert("scaled", "merged", TargetFormat::kHuggingFace);
  json still =
      merged(runs.adapters(), {{"model", {{"initial_weights", runs.path("merged")}}},
                               {"optimizer", {{"params", {{"lr", 1e-30}, {"weight_decay", 0.0}}}}},
                               {"scheduler", nullptr}});
  still.erase("peft");
  CHECK(last_loss(runs.train("still", 1, 1, still)) == Approx(trained).epsilon(1e-6).margin(0));
  still["model"]["initial_weights"] = runs.path("base");
  CHECK(last_loss(runs.train("before", 1, 1, still)) != Approx(trained).epsilon(1e-4).margin(0));

  convert("scaled", "adapter", TargetFormat::kPeft);
  CHECK(convert("base", "merged-too", TargetFormat::kHuggingFace, "adapter") == whole);
  CHECK(whole.size() > 1000);
}

TEST_CASE("adapters that drop of what they read follow one rank in every layout",
          "[parity][dropout]") {
  TinyOptions options;
  options.adapters = {.rank = 4, .alpha = 6.0, .target_modules = {kAllLinear}};
  options.steps = 4;
  const TinyRun whole = train_tiny(options);
  options.adapters.dropout = 0.3;
  const TinyRun dropped = train_tiny(options);
  CHECK(dropped.losses.front() == whole.losses.front());  // B is 0
  CHECK(dropped.losses.back() != whole.losses.back());
  check_layouts(options);
  INFO("several matrices in one module");
  TinyOptions phi3 = tiny_family("phi3");
  phi3.model->tied_embeddings = false;
  phi3.adapters = options.adapters;
  check_layouts(phi3);
}

TEST_CASE("noise of embeddings follows one rank in every layout", "[parity][dropout]") {
  TinyOptions options;
  options.steps = 4;
  const TinyRun still = train_tiny(options);
  options.noise_alpha = 8.0;
  CHECK(train_tiny(options).losses.front() != still.losses.front());
  check_layouts(options);
}

}  // namespace
}  // namespace dstrain::test
