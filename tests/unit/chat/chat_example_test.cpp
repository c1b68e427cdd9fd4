#include "engine/chat/chat_example.h"

#include <string>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/jinja/json.h"

namespace dstrain {
namespace {

using Kind = ChatExample::Kind;

ChatExample read(const std::string& line) {
  auto read = read_chat_example(line);
  if (const auto* const why = std::get_if<std::string>(&read)) {
    FAIL(*why);
  }
  return std::get<ChatExample>(std::move(read));
}

std::string why(const std::string& line) {
  const auto read = read_chat_example(line);
  const auto* const reason = std::get_if<std::string>(&read);
  return reason != nullptr ? *reason : "it is an example";
}

std::string messages_of(const Answer& answer) {
  return jinja::to_json(jinja::Value::list(answer.conversation.messages));
}

TEST_CASE("every usual form of a conversation becomes the same messages", "[chat]") {
  const std::string same =
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";
  for (
      const std::string& line : std::vector<std::string>{
          R"({"messages": )" + same + "}",
          R"({"conversations": )" + same + "}",
          R"({"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})",
          R"({"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "q"}, {"from": "model", "value": "a"}]})",
          R"({"system": "s", "instruction": "q", "input": "", "output": "a"})",
      }) {
    INFO(line);
    const ChatExample example = read(line);
    CHECK(example.kind == Kind::kConversation);
    CHECK(messages_of(example.answer) == same);
  }
}

TEST_CASE("Alpaca's input goes below its instruction, behind its history", "[chat]") {
  const ChatExample example =
      read(R"({"instruction": "add", "input": "1 2", "output": "3", "history": [["hi", "ho"]]})");
  CHECK(messages_of(example.answer) ==
        R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, )"
        R"({"role": "user", "content": "add\n1 2"}, {"role": "assistant", "content": "3"}])");
}

TEST_CASE("a prompt and its completion are texts, or messages", "[chat]") {
  const ChatExample text = read(R"({"prompt": "a ", "completion": "b"})");
  CHECK(text.kind == Kind::kCompletion);
  CHECK(text.answer.is_text);
  CHECK(text.answer.prompt == "a ");
  CHECK(text.answer.text == "b");
  const ChatExample messages = read(
      R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})");
  CHECK_FALSE(messages.answer.is_text);
  CHECK(messages.answer.prompt_messages == 1);
  CHECK(messages.answer.conversation.messages.size() == 2);
  const ChatExample rated = read(R"({"prompt": "a", "completion": "b", "label": false})");
  CHECK(rated.kind == Kind::kRated);
  CHECK_FALSE(rated.is_liked);
}

TEST_CASE("what both answers of a pair begin with is their prompt", "[chat]") {
  const ChatExample text = read(R"({"chosen": "the sky is blue", "rejected": "the sky is green"})");
  CHECK(text.kind == Kind::kPair);
  CHECK(text.answer.prompt == "the sky is");
  CHECK(text.answer.text == " blue");
  CHECK(text.rejected->text == " green");
  const ChatExample messages = read(
      R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],)"
      R"( "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})");
  CHECK(messages.answer.prompt_messages == 1);
  CHECK(messages.answer.conversation.messages.size() == 2);
}

TEST_CASE("a ShareGPT call of a tool becomes one that templates know", "[chat]") {
  const ChatExample example = read(
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"}, {"from": "observation", "value": "2"}, {"from": "gpt", "value": "a"}], "tools": "[{\"name\": \"f\"}]"})");
  CHECK(
      messages_of(example.answer) ==
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}, )"
      R"({"role": "tool", "content": "2"}, {"role": "assistant", "content": "a"}])");
  CHECK(jinja::to_json(example.answer.conversation.tools) == R"([{"name": "f"}])");
}

TEST_CASE("a line that is no example says why", "[chat]") {
  CHECK(why("{") == "is not JSON");
  CHECK(why("[1]") == "is array, expected an object");
  CHECK(why(R"({"mesages": []})").find(R"((but "mesages"))") != std::string::npos);
  CHECK(why(R"({"messages": []})") ==
        R"(has "messages" without a message, expected a list of messages)");
  CHECK(why(R"({"messages": [{"content": "x"}]})") ==
        R"(has "messages" of which message 1 has no "role")");
  CHECK(why(R"({"conversations": [{"from": "alien", "value": "x"}]})").find("\"alien\"") !=
        std::string::npos);
  CHECK(why(R"({"chosen": "x"})") == R"(has a "chosen" without a "rejected")");
  CHECK(why(R"({"prompt": "x", "completion": "y", "label": 1})") ==
        R"(has a "label" that is neither true nor false)");
  CHECK(why(R"({"instruction": 3, "output": "x"})") ==
        R"(has a "instruction" that is number, expected a text)");
}

}  // namespace
}  // namespace dstrain
