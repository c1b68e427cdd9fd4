// Fine-tuning on conversations: every layout follows one rank, and a resume is exact.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace dstrain::test
