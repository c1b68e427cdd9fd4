// Fine-tuning on conversations: every layout follows one rank, and a resume is exact.
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "engine/train/run_data.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

/// Conversations of one to three turns, answers of 1 to 12 letters.
void write_chats(const std::filesystem::path& path) {
  std::ofstream file(path);
  std::uint32_t state = 1;
  const auto random = [&](std::uint32_t below) {
    state = state * 1664525U + 1013904223U;
    return (state >> 16U) % below;
  };
  const auto text = [&](std::uint32_t most) {
    std::string letters;
    for (std::uint32_t left = 1 + random(most); left > 0; --left) {
      letters += static_cast<char>('a' + random(26));
    }
    return letters;
  };
  for (int i = 0; i < 60; ++i) {
    json messages = json::array();
    for (std::uint32_t turns = 1 + random(3); turns > 0; --turns) {
      messages.push_back({{"role", "user"}, {"content", text(10)}});
      messages.push_back({{"role", "assistant"}, {"content", text(12)}});
    }
    file << json{{"messages", messages}}.dump() << '\n';
  }
}

class Chats {
 public:
  Chats() {
    write_chats(folder_.path() / "chats.jsonl");
    std::ofstream(folder_.path() / "chat.jinja")
        << "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
           "{% if add_generation_prompt %}<a>{% endif %}";
  }

  /// The losses of a run's steps, by its metrics.
  std::vector<json> train(const std::string& output,
                          int ranks,
                          const json& changes,
                          int steps = 6) const {
    const json of_samples = {{"model", {{"vocab_size", 256}, {"max_position_embeddings", 64}}},
                             {"data",
                              {{"train", (folder_.path() / "chats.jsonl").string()},
                               {"validation", nullptr},
                               {"sequence_length", 64},
                               {"tokenizer", "bytes"},
                               {"chat_template", (folder_.path() / "chat.jinja").string()},
                               {"stop_token", ";"}}}};
    LoadedConfig config = config_of(folder_, output, steps, ranks, merged(of_samples, changes));
    CHECK(config.config.data.samples);
    CHECK(config.config.data.document_attention);
    config.config.data = with_prepared_samples(config.config, [] { return false; });
    run(config, ranks);
    return metrics_of(folder_, output);
  }

 private:
  RunFolder folder_;
};

std::vector<double> losses_of(const std::vector<json>& metrics) {
  std::vector<double> losses;
  for (const json& step : metrics) {
    losses.push_back(step.at("loss").get<double>());
  }
  return losses;
}

TEST_CASE("fine-tuning on conversations follows one rank in every layout", "[parity]") {
  const Chats chats;
  const std::vector<double> single = losses_of(chats.train("single", 1, json::object()));
  REQUIRE(single.size() == 6);
  CHECK(single.back() < single.front());
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
    const std::vector<double> losses =
        losses_of(chats.train(layout.name, layout.ranks, layout.changes));
    REQUIRE(losses.size() == single.size());
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CHECK(losses[step] == Approx(single[step]).epsilon(1e-5).margin(0));
    }
  }
}

TEST_CASE("a resumed run on conversations has the digits of one that never stopped", "[parity]") {
  const Chats chats;
  const std::vector<json> straight = chats.train("straight", 2, json::object(), 8);
  chats.train("stopped", 2, json::object(), 4);
  CHECK(chats.train("stopped", 2, json::object(), 8) == straight);
}

}  // namespace
}  // namespace dstrain::test
