// Runs that are fine-tuned on samples made of JSON lines, in every layout.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/run_data.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {

/// Letters at random, the same ones in each run.
class RandomText {
 public:
  std::uint32_t number(std::uint32_t below) {
    state_ = state_ * 1664525U + 1013904223U;
    return (state_ >> 16U) % below;
  }
  std::string letters(std::uint32_t most) {
    std::string text;
    for (std::uint32_t left = 1 + number(most); left > 0; --left) {
      text += static_cast<char>('a' + number(26));
    }
    return text;
  }

 private:
  std::uint32_t state_ = 1;
};

class SampleRun {
 public:
  /// 60 lines as `line` makes them.
  explicit SampleRun(const std::function<nlohmann::json(RandomText&)>& line) {
    RandomText text;
    std::ofstream file(folder_.path() / "samples.jsonl");
    for (int i = 0; i < 60; ++i) {
      file << line(text).dump() << '\n';
    }
    std::ofstream(folder_.path() / "chat.jinja")
        << "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
           "{% if add_generation_prompt %}<a>{% endif %}";
  }

  [[nodiscard]] std::filesystem::path path(const std::string& output) const {
    return folder_.path() / output;
  }
  /// A config whose data are prepared.
  [[nodiscard]] LoadedConfig config(const std::string& output,
                                    int ranks,
                                    const nlohmann::json& changes,
                                    int steps) const {
    const nlohmann::json of_samples = {
        {"model", {{"vocab_size", 256}, {"max_position_embeddings", 64}}},
        {"data",
         {{"train", (folder_.path() / "samples.jsonl").string()},
          {"validation", nullptr},
          {"sequence_length", 64},
          {"tokenizer", "bytes"},
          {"chat_template", (folder_.path() / "chat.jinja").string()},
          {"stop_token", ";"}}}};
    LoadedConfig config = config_of(folder_, output, steps, ranks, merged(of_samples, changes));
    CHECK(config.config.data.samples);
    CHECK(config.config.data.document_attention);
    config.config.data = with_prepared_samples(config.config, [] { return false; });
    return config;
  }
  /// The lines of a run's metrics.
  std::vector<nlohmann::json> train(const std::string& output,
                                    int ranks,
                                    const nlohmann::json& changes,
                                    int steps = 6) const {
    run(config(output, ranks, changes, steps), ranks);
    return metrics_of(folder_, output);
  }

 private:
  RunFolder folder_;
};

/// Trains in each layout, and holds the numbers of each step to those of one rank.
inline void check_sample_layouts(const SampleRun& samples,
                                 const std::vector<std::string>& numbers,
                                 const nlohmann::json& changes = nlohmann::json::object()) {
  using nlohmann::json;
  const auto train = [&](const std::string& name, int ranks, const json& layout) {
    return samples.train(name, ranks, merged(changes, layout));
  };
  const std::vector<json> single = train("single", 1, json::object());
  REQUIRE(single.size() == 6);
  CHECK(single.back().at("loss") != single.front().at("loss"));
  struct Layout {
    const char* name;
    int ranks;
    json changes;
  };
  const auto tensor = [](bool sequence_parallel) {
    return json{{"tensor_parallel", {{"size", 2}, {"sequence_parallel", sequence_parallel}}}};
  };
  const Layout layouts[] = {
      {"dp4", 4, {{"gradient_accumulation_steps", 1}}},
      {"dp2-zero3", 2, {{"zero_optimization", {{"stage", 3}}}}},
      {"tp2", 2, tensor(true)},
      {"pp2", 2, {{"pipeline", {{"stages", 2}}}}},
      {"cp2", 2, {{"context_parallel", {{"size", 2}}}}},
      {"cp2-ulysses", 2, {{"context_parallel", {{"size", 2}, {"kind", "ulysses"}}}}},
      {"tp2-pp2-zero1", 4,
       merged(tensor(false),
              {{"pipeline", {{"stages", 2}}}, {"zero_optimization", {{"stage", 1}}}})},
  };
  for (const Layout& layout : layouts) {
    INFO(layout.name);
    const std::vector<json> lines = train(layout.name, layout.ranks, layout.changes);
    REQUIRE(lines.size() == single.size());
    for (std::size_t step = 0; step < lines.size(); ++step) {
      for (const std::string& number : numbers) {
        INFO("step " << step + 1 << ", " << number);
        const double expected = single[step].at(number).get<double>();
        CHECK(lines[step].at(number).get<double>() == Approx(expected).epsilon(1e-5).margin(1e-6));
      }
    }
  }
}

}  // namespace dstrain::test
