#include "engine/chat/chat_template.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/jinja/json.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::ScratchFolder;

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

Conversation hello() {
  return {.messages =
              jinja::from_json(Json::parse(R"([{"role": "user", "content": "hi"}])")).items()};
}

std::string text_of(const ChatTemplate& chat, const Conversation& conversation) {
  return chat.render(conversation, conversation.messages.size(), ChatTemplate::Ends::kWithPrompt)
      .text;
}

std::string error_of(const fs::path& path, const fs::path& tokenizer) {
  try {
    ChatTemplate::find(path, tokenizer);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a chat template is found where transformers looks for it", "[chat]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch / "";
  CHECK_FALSE(ChatTemplate::is_in(folder));
  CHECK(error_of(folder, folder).find("no chat template there") != std::string::npos);
  write(
      folder / "tokenizer_config.json",
      R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  CHECK(ChatTemplate::is_in(folder));
  CHECK(text_of(ChatTemplate::find(folder, folder), hello()) == "<s>hi</s>");
  // A file of its own counts more.
  write(folder / "chat_template.jinja",
        "[{{ messages[0].content }}]{% if add_generation_prompt %}>{% endif %}");
  const ChatTemplate chat = ChatTemplate::find(folder, folder);
  CHECK(text_of(chat, hello()) == "[hi]>");
  CHECK(chat.render(hello(), 1, ChatTemplate::Ends::kWithMessage).text == "[hi]");
  CHECK(chat.special_token("eos_token") == "</s>");
}

TEST_CASE("of several templates, the one for tools writes conversations with tools", "[chat]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch / "";
  write(
      folder / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "tools: {{ tools | tojson }}"}, {"name": "default", "template": "plain"}]})");
  const ChatTemplate chat = ChatTemplate::find(folder, folder);
  Conversation conversation = hello();
  CHECK(text_of(chat, conversation) == "plain");
  conversation.tools = jinja::from_json(Json::parse(R"([{"name": "f"}])"));
  CHECK(text_of(chat, conversation) == R"(tools: [{"name": "f"}])");
}

TEST_CASE("a template that is none is refused by file and line", "[chat]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch / "";
  write(folder / "chat_template.jinja", "a\n{% if x %}");
  CHECK(error_of(folder, folder) == (folder / "chat_template.jinja").string() +
                                        ": the chat template: line 2: the template ends without "
                                        "{% endif %}");
}

TEST_CASE("stop ids are those that the model's folder names", "[chat]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch / "";
  CHECK(stop_ids_of(folder).empty());
  write(folder / "config.json", R"({"eos_token_id": 7})");
  CHECK(stop_ids_of(folder) == std::vector<std::int32_t>{7});
  write(folder / "generation_config.json", R"({"eos_token_id": [3, 9]})");
  CHECK(stop_ids_of(folder) == std::vector<std::int32_t>{3, 9});
}

}  // namespace
}  // namespace dstrain
