// Training on preferences: every layout follows one rank, a resume is exact, with the reference
// from the run's folder or made anew, and a run moves and holds what is planned. What it equals
// from outside: scripts/check_preferences.
#include "engine/train/objective/preferences.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/config_error.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/preference_training.h"
#include "engine/train/rank_report.h"
#include "kernels/core/caller_stream.h"
#include "tests/harness/recorded_traffic.h"
#include "tests/harness/recording_communicator.h"
#include "tests/harness/thread_world.h"
#include "tests/parity/partly_trained.h"
#include "tests/parity/sample_run.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

json pair(RandomText& text) {
  const auto answer = [&] {
    return json::array({{{"role", "assistant"}, {"content", text.letters(14)}}});
  };
  return {{"prompt", json::array({{{"role", "user"}, {"content", text.letters(8)}}})},
          {"chosen", answer()},
          {"rejected", answer()}};
}

json rated(RandomText& text) {
  return {{"prompt", json::array({{{"role", "user"}, {"content", text.letters(8)}}})},
          {"completion", json::array({{{"role", "assistant"}, {"content", text.letters(14)}}})},
          {"label", text.number(2) == 0}};
}

const std::vector<std::string> kNumbers = {"loss", "grad_norm", "chosen_reward", "rejected_reward"};

json with_loss(const std::string& loss, const json& more = json::object()) {
  return merged({{"preferences", {{"loss_type", loss}, {"beta", 0.3}}}}, more);
}

TEST_CASE("preferences follow one rank in every layout", "[parity][preferences]") {
  const SampleRun pairs(pair);
  SECTION("with a reference") {
    check_sample_layouts(pairs, kNumbers, with_loss("sigmoid"));
  }
  SECTION("with adapters") {
    check_sample_layouts(
        pairs, kNumbers,
        with_loss("ipo", {{"peft", {{"target_modules", "all-linear"}, {"r", 4}}}}));
  }
  SECTION("without a reference, with the prompt trained") {
    check_sample_layouts(pairs, kNumbers, with_loss("orpo"));
  }
  SECTION("with several pairs in a sequence, some of them cut") {
    check_sample_layouts(
        pairs, kNumbers,
        with_loss("sigmoid", {{"data", {{"pack", "best_fit"}, {"sequence_length", 72}}},
                              {"model", {{"max_position_embeddings", 72}}}}));
  }
}

TEST_CASE("a run of preferences moves and holds what is planned", "[parity][preferences]") {
  const SampleRun pairs(pair);
  const json layouts[] = {
      {{"zero_optimization", {{"stage", 3}}}},
      {{"tensor_parallel", {{"size", 2}}}},
      {{"context_parallel", {{"size", 2}}}},
      {{"context_parallel", {{"size", 2}, {"kind", "ulysses"}}}},
  };
  for (const json& layout : layouts) {
    INFO(layout.dump());
    const LoadedConfig config = pairs.config("planned", 2, with_loss("ipo", layout), 2);
    const auto unplanned = thread_world(2, [&](Rendezvous& rank) {
      CollectiveLog traffic;
      RecordingRendezvous recorded(rank, traffic);
      const BatchLoader loader(config.config.data, config.config.data.train, 256, 1);
      Engine engine(make_run_plan(config.config, 2, rank.world_rank()), recorded,
                    make_cpu_backend(1), 1);
      ReferenceLogProbabilities reference(loader);
      reference.compute(engine, loader, reference.unknown(loader, 16));
      engine.set_objective(std::make_unique<PreferenceObjective>(
          engine.plan(), config.config.preferences,
          PreferenceData{.answers = &loader, .reference = &reference}, PreferenceData{}));
      const LoadBatch load = [&](std::int64_t first, std::span<std::int32_t> inputs,
                                 std::span<std::int32_t> targets) {
        loader.load(first, inputs, targets);
      };
      std::string difference_found;
      for (int step = 0; step < 2; ++step) {
        traffic.clear();
        engine.train_step(load, 8 * step, {.learning_rate = 1e-3, .update = step + 1});
        CallerStream host;
        static_cast<void>(gather_reports({}, engine.world(), host));
        difference_found += difference(engine.plan(), traffic.entries(), GradientTravel::kSummed);
      }
      engine.settle();
      if (engine.arena().bytes() != engine.plan().memory.bytes()) difference_found += "memory";
      return difference_found;
    });
    for (const std::string& text : unplanned) {
      CHECK(text == "");
    }
  }
}

TEST_CASE("rated answers follow one rank in every layout", "[parity][preferences]") {
  const SampleRun answers(rated);
  const std::vector<std::string> numbers = {"loss", "grad_norm", "divergence"};
  SECTION("one a sequence") {
    check_sample_layouts(answers, numbers, with_loss("kto", {{"preferences", {{"beta", 0.5}}}}));
  }
  SECTION("several a sequence") {
    check_sample_layouts(
        answers, numbers,
        with_loss("kto",
                  {{"data", {{"pack", "best_fit"}}},
                   {"preferences", {{"desirable_weight", 2}, {"undesirable_weight", 0.5}}}}));
  }
}

TEST_CASE("a reward model follows one rank in every layout", "[parity][preferences]") {
  const SampleRun pairs(pair);
  const json centred =
      with_loss("reward", {{"preferences", {{"center_rewards_coefficient", 0.1}}}});
  SECTION("untied") {
    check_sample_layouts(pairs, kNumbers, centred);
  }
  SECTION("made of a model whose head is the table") {
    check_sample_layouts(pairs, kNumbers,
                         merged(centred, {{"model", {{"tie_word_embeddings", true}}}}));
  }
  SECTION("with adapters, and the head trained whole") {
    check_sample_layouts(pairs, kNumbers,
                         merged(centred, {{"peft", {{"target_modules", "all-linear"}, {"r", 4}}}}));
  }
}

TEST_CASE("a reward model is made of one that has logits, and goes on as what it is",
          "[parity][preferences]") {
  const SampleRun pairs(pair);
  const auto from = [&](const std::string& weights, double rate) {
    return with_loss("reward", {{"model", {{"initial_weights", pairs.path(weights).string()}}},
                                {"data", {{"validation", pairs.path("samples.jsonl")}}},
                                {"optimizer", {{"params", {{"lr", rate}}}}}});
  };
  constexpr double kStill = 1e-30;
  const auto end_of = [](const std::vector<json>& lines) {
    return lines.back().at("validation_loss").get<double>();
  };
  pairs.train("plain", 1, with_loss("orpo"), 2);
  const std::vector<json> straight = pairs.train("straight", 1, from("plain", 0.01), 8);
  pairs.train("stopped", 1, from("plain", 0.01), 4);
  CHECK(pairs.train("stopped", 1, from("plain", 0.01), 8) == straight);
  // A run that starts from it takes its head over.
  CHECK(end_of(pairs.train("again", 1, from("straight", kStill), 1)) == end_of(straight));
  // And so does one that starts from the class that transformers has for it.
  convert_checkpoint({.from = pairs.path("straight"),
                      .to = pairs.path("classifier"),
                      .format = TargetFormat::kHuggingFace},
                     {});
  std::ifstream file(pairs.path("classifier") / "config.json");
  const json config = json::parse(file);
  CHECK(config.at("architectures") == json::array({"LlamaForSequenceClassification"}));
  CHECK(config.at("id2label").size() == 1);
  const SafetensorsFile weights(pairs.path("classifier") / "model.safetensors");
  CHECK(weights.tensors().at("score.weight").shape == std::vector<std::int64_t>{1, 40});
  CHECK_FALSE(weights.tensors().contains("lm_head.weight"));
  CHECK(end_of(pairs.train("from-folder", 1, from("classifier", kStill), 1)) == end_of(straight));
}

TEST_CASE("before any step, a policy is its own reference", "[parity][preferences]") {
  const SampleRun pairs(pair);
  const json first = pairs.train("run", 1, with_loss("sigmoid"), 1).front();
  CHECK(first.at("loss").get<double>() == Approx(0.69314718056).epsilon(1e-7));
  CHECK(first.at("chosen_reward") == 0.0);
  CHECK(first.at("rejected_reward") == 0.0);
}

void check_resume(const SampleRun& samples, const std::string& loss, std::size_t tensors) {
  const json changes = with_loss(loss, {{"data", {{"validation", samples.path("samples.jsonl")}}}});
  const std::vector<json> straight = samples.train("straight", 2, changes, 8);
  CHECK(straight[1].contains("validation_chosen_reward"));
  const auto file = samples.path("stopped") / "reference.safetensors";
  for (const bool is_kept : {true, false}) {
    INFO("with its reference, or one made anew by the weights that it began with");
    std::filesystem::remove_all(samples.path("stopped"));
    samples.train("stopped", 2, changes, 4);
    REQUIRE(std::filesystem::exists(file));
    if (!is_kept) std::filesystem::remove(file);
    CHECK(samples.train("stopped", 2, changes, 8) == straight);
    const SafetensorsFile reference(file);
    CHECK(reference.tensors().size() == tensors);
  }
}

TEST_CASE("a resumed run of preferences has the digits of one that never stopped",
          "[parity][preferences]") {
  SECTION("of pairs") {
    check_resume(SampleRun(pair), "sigmoid", 2);
  }
  SECTION("of rated answers") {
    check_resume(SampleRun(rated), "kto", 4);
  }
}

TEST_CASE("a run of preferences that is done stays as it is", "[parity][preferences]") {
  const SampleRun pairs(pair);
  pairs.train("done", 2, with_loss("sigmoid"), 4);
  const auto file = pairs.path("done") / "reference.safetensors";
  REQUIRE(std::filesystem::remove(file));
  pairs.train("done", 2, with_loss("sigmoid"), 4);
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("a signal ends a run before its first step, while it finds the reference",
          "[parity][preferences]") {
  const SampleRun pairs(pair);
  const std::atomic<int> signal{SIGTERM};
  const LoadedConfig config = pairs.config("stopped", 2, with_loss("sigmoid"), 8);
  const TrainResult result = run(config, 2, &signal);
  CHECK(result.stopped_by == SIGTERM);
  CHECK(result.step == 0);
  CHECK_FALSE(std::filesystem::exists(pairs.path("stopped") / "checkpoints" / "step-00000001"));
  CHECK(pairs.train("stopped", 2, with_loss("sigmoid"), 8) ==
        pairs.train("straight", 2, with_loss("sigmoid"), 8));
}

TEST_CASE("a reference that is damaged is made anew", "[parity][preferences]") {
  const SampleRun pairs(pair);
  const std::vector<json> straight = pairs.train("straight", 1, with_loss("ipo"), 8);
  pairs.train("damaged", 1, with_loss("ipo"), 4);
  const auto path = pairs.path("damaged") / "reference.safetensors";
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size - 4);
  file.put('\x55');
  file.close();
  CHECK(pairs.train("damaged", 1, with_loss("ipo"), 8) == straight);
}

/// Counts what a rank tells of its progress.
class CountingRecorder final : public ActivityRecorder {
 public:
  int add_group(const std::string& /*name*/) override { return 0; }
  void begin_collective(int /*group*/, Op /*op*/, Purpose /*purpose*/) noexcept override {}
  void end_collective(int /*group*/) noexcept override {}
  void begin_wait() noexcept override {}
  void end_wait() noexcept override {}
  void begin_phase(RunPhase phase) noexcept override {
    starting += phase == RunPhase::kStarting ? 1 : 0;
  }
  void finish_step(std::int64_t /*step*/) noexcept override {}
  void set_comparable(int /*number*/) noexcept override {}

  int starting = 0;
};

TEST_CASE("each micro-batch of the reference is progress, and none is computed twice",
          "[preferences]") {
  const SampleRun answers(rated);
  std::atomic<int> signal{0};
  const auto micro_batches = [&](int steps) {
    const LoadedConfig config = answers.config("told", 1, with_loss("kto"), steps);
    CountingRecorder recorder;
    const std::vector<int> stopped_by = thread_world(1, [&](Rendezvous& rank) {
      const BatchLoader loader(config.config.data, config.config.data.train, 256, 1);
      Engine engine(make_run_plan(config.config, 1, 0), rank, make_cpu_backend(1), 1);
      const TrainOptions options{.stop_signal = &signal, .activity = &recorder};
      PreferenceTraining preferences(config.config, engine, loader, nullptr, options);
      return preferences.find_reference([] {});
    });
    CHECK(stopped_by == std::vector<int>{signal.load()});
    return recorder.starting;
  };
  // Sequences of steps are computed 4 at a time, once as they are and once mismatched.
  CHECK(micro_batches(2) == 2 * 2 * 8 / 4);
  CHECK(micro_batches(2) == 0);
  CHECK(micro_batches(3) == 2 * 8 / 4);
  signal = SIGTERM;
  CHECK(micro_batches(4) == 1);  // that under way ends
}

TEST_CASE("what preferences are not learnt from is refused", "[preferences]") {
  const auto refusal = [&](const SampleRun& samples, const json& changes) -> std::string {
    try {
      static_cast<void>(samples.train("refused", 1, changes, 1));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "trained";
  };
  SECTION("pairs without preferences") {
    CHECK_THAT(
        refusal(SampleRun(pair), json::object()),
        Contains("holds pairs of answers") && Contains("would train what was rejected, too"));
  }
  SECTION("pairs of what are rated answers") {
    CHECK_THAT(refusal(SampleRun(rated), with_loss("sigmoid")),
               Contains("holds answers that were liked or not"));
  }
  SECTION("preferences without pairs") {
    const SampleRun plain([](RandomText& text) {
      return json{{"prompt", text.letters(5)}, {"completion", text.letters(5) + ";"}};
    });
    CHECK_THAT(refusal(plain, with_loss("sigmoid")),
               Contains("holds single samples") && Contains("lines with \"chosen\""));
  }
}

}  // namespace
}  // namespace dstrain::test
