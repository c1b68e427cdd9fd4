// Fine-tuning on conversations: every layout follows one rank, and a resume is exact.
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/model_counts.h"
#include "tests/parity/sample_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

/// One to three turns, answers of 1 to 12 letters.
json conversation(RandomText& text) {
  json messages = json::array();
  for (std::uint32_t turns = 1 + text.number(3); turns > 0; --turns) {
    messages.push_back({{"role", "user"}, {"content", text.letters(10)}});
    messages.push_back({{"role", "assistant"}, {"content", text.letters(12)}});
  }
  return {{"messages", messages}};
}

TEST_CASE("fine-tuning on conversations follows one rank in every layout", "[parity]") {
  check_sample_layouts(SampleRun(conversation), {"loss"});
}

TEST_CASE("a resumed run on conversations has the digits of one that never stopped", "[parity]") {
  const SampleRun chats(conversation);
  const std::vector<json> straight = chats.train("straight", 2, json::object(), 8);
  chats.train("stopped", 2, json::object(), 4);
  CHECK(chats.train("stopped", 2, json::object(), 8) == straight);
}

TEST_CASE("FLOPs are those of the tokens whose targets count", "[parity]") {
  const SampleRun chats(conversation);
  chats.train("run", 1, json::object(), 3);
  const Config config = chats.config("run", 1, json::object(), 3).config;
  const double all = flops_per_token(config.model, 64);
  const double without_head = all - head_flops_per_token(Architecture(config.model));
  std::ifstream in(chats.path("run") / "metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const json step = json::parse(line);
    const double flops = step.at("model_flops_per_second").get<double>() /
                         step.at("tokens_per_second").get<double>();
    CHECK(flops > without_head);  // prompts and what fills sequences up do not count
    CHECK(flops < all - 0.1 * (all - without_head));
  }
  CHECK(lines == 3);
}

}  // namespace
}  // namespace dstrain::test
