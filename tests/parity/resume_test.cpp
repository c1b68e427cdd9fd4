// Saving and resuming must not change a bit of the run that follows.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/model_json.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;

nlohmann::json precision(const std::string& name) {
  return {{name, {{"enabled", true}}}};
}

TEST_CASE("resuming gives the bits of the uninterrupted run", "[parity][resume]") {
  const int ranks = GENERATE(1, 2);
  const nlohmann::json formats = GENERATE(nlohmann::json::object(), precision("bf16"));
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "straight", 8, ranks, formats);
  CHECK(run(straight, ranks).step == 8);

  CHECK(run(config_of(folder, "parts", 5, ranks, formats), ranks).step == 5);
  CHECK(run(config_of(folder, "parts", 8, ranks, formats), ranks).step == 8);

  auto parts = metrics_of(folder, "parts");
  auto whole = metrics_of(folder, "straight");
  REQUIRE(parts.size() == 8);
  REQUIRE(whole.size() == 8);
  CHECK(parts[4].erase("validation_loss") == 1);  // the first part evaluated at its own end
  CHECK(parts[4].erase("validation_token_accuracy") == 1);
  CHECK(parts == whole);
  CHECK(state_of(folder, "parts", straight) == state_of(folder, "straight", straight));
}

TEST_CASE("a signal finishes the step, saves, and the run continues from there",
          "[parity][resume]") {
  const RunFolder folder;
  const LoadedConfig config = config_of(folder, "stopped", 8, 2);
  const std::atomic<int> signal{SIGTERM};
  const TrainResult stopped = run(config, 2, &signal);
  CHECK(stopped.step == 1);
  CHECK(stopped.stopped_by == SIGTERM);
  CHECK(run(config, 2).step == 8);

  const LoadedConfig straight = config_of(folder, "straight", 8, 2);
  CHECK(run(straight, 2).step == 8);
  CHECK(metrics_of(folder, "stopped") == metrics_of(folder, "straight"));
  CHECK(state_of(folder, "stopped", config) == state_of(folder, "straight", straight));
}

TEST_CASE("a run that lost steps after its last checkpoint repeats them and says each once",
          "[parity][resume]") {
  const RunFolder folder;
  const LoadedConfig config = config_of(folder, "crashed", 8, 1);
  CHECK(run(config, 1).step == 8);
  const auto before = metrics_of(folder, "crashed");
  // Same state as after a crash at step 8: the newest checkpoint is step 4's.
  fs::remove_all(folder.path() / "crashed" / "checkpoints" / "step-00000008");
  CHECK(run(config, 1).step == 8);
  CHECK(metrics_of(folder, "crashed") == before);
}

TEST_CASE("a checkpoint of a larger model is refused, not resumed in part", "[resume]") {
  const RunFolder folder;
  LoadedConfig config = config_of(folder, "other", 1, 1);
  config.config.model.num_layers = 3;
  CHECK(run(config, 1).step == 1);
  CHECK_THROWS_MATCHES(
      run(config_of(folder, "other", 2, 1), 1), CheckpointError,
      Catch::Matchers::Predicate<CheckpointError>([](const CheckpointError& error) {
        return std::string(error.what()).find("blocks.2.") != std::string::npos;
      }));
}

TEST_CASE("a run that diverges stops, names the tensor, and saves nothing of it", "[resume]") {
  const RunFolder folder;
  LoadedConfig config = config_of(folder, "diverged", 8, 2);
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
  CHECK(run(config_of(folder, "reshaped", 4, 1), 1).step == 4);
  CHECK(run(config_of(folder, "reshaped", 8, 2), 2).step == 8);
  CHECK(run(config_of(folder, "straight", 8, 1), 1).step == 8);
  const auto reshaped = metrics_of(folder, "reshaped");
  const auto straight = metrics_of(folder, "straight");
  REQUIRE(reshaped.size() == 8);
  for (std::size_t step = 0; step < 8; ++step) {
    CHECK(reshaped[step]["loss"].get<double>() ==
          Approx(straight[step]["loss"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("a checkpoint and the resolved config keep the model's attention window",
          "[parity][resume]") {
  const RunFolder folder;
  const nlohmann::json mistral{{"model", {{"model_type", "mistral"}, {"sliding_window", 19}}}};
  const nlohmann::json qwen{{"model",
                             {{"model_type", "qwen2"},
                              {"use_sliding_window", true},
                              {"sliding_window", 25},
                              {"max_window_layers", 1}}}};
  for (const auto& [name, model, window, first] :
       {std::tuple{"mistral", mistral, 19, 0}, {"qwen", qwen, 25, 1}}) {
    CAPTURE(name);
    run(config_of(folder, name, 1, 1, model), 1);
    const auto latest = CheckpointStore(folder.path() / name / "checkpoints").latest();
    REQUIRE(latest);
    const fs::path resolved = folder.path() / name / "config.resolved.json";
    std::ifstream in(resolved);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (const ModelSpec& spec :
         {open_weights(*latest).model, parse_model_spec(text, "resolved")}) {
      CHECK(spec.attention_window == window);
      CHECK(spec.first_window_layer == first);
    }
    // Sequences may be longer than the window, which they are then trained through. The model of
    // the resolved file has no more positions than the run's.
    const LoadedConfig resumed = load_config(resolved.string(), {});
    CHECK(resumed.config.model.attention_window == window);
    CHECK(resumed.config.model.first_window_layer == first);
  }
}

}  // namespace
}  // namespace dstrain::test
