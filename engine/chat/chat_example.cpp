#include "engine/chat/chat_example.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/jinja/json.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChatExample::Kind;

/// Why a line is no example; becomes the clause.
struct Refusal {
  std::string why;
};

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const std::string& string_of(const Json& value, std::string_view what) {
  if (!value.is_string()) {
    throw Refusal{fmt::format("has a {} that is {}, expected a text", what, value.type_name())};
  }
  return value.get_ref<const std::string&>();
}

Json message(std::string_view role, const Json& content) {
  return Json{{"role", role}, {"content", content}};
}

/// Messages as templates take them. Reasoning goes by several names, and templates ask for one or
/// another; transformers makes them the same too.
jinja::Items messages_of(const Json& list, std::string_view what) {
  if (!list.is_array() || list.empty()) {
    throw Refusal{fmt::format("has {} {}, expected a list of messages", what,
                              list.is_array() ? "without a message" : "that are no list")};
  }
  jinja::Items messages;
  for (const Json& one : list) {
    if (!one.is_object() || find(one, "role") == nullptr) {
      throw Refusal{
          fmt::format("has {} of which message {} has no \"role\"", what, messages.size() + 1)};
    }
    string_of(one["role"], "\"role\"");
    Json whole = one;
    for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
      if (const Json* const reasoning = find(one, name)) {
        whole["reasoning_content"] = *reasoning;
        if (!whole.contains("thinking")) {
          whole["thinking"] = *reasoning;
        }
        break;
      }
    }
    messages.push_back(jinja::from_json(whole));
  }
  return messages;
}

/// Tools, as a list or as a text of JSON, and other names for the template.
void take_context(const Json& object, Conversation& conversation) {
  if (const Json* const tools = find(object, "tools")) {
    Json list = *tools;
    if (tools->is_string()) {
      list = Json::parse(tools->get_ref<const std::string&>(), nullptr, false);
    }
    if (!list.is_array()) {
      throw Refusal{"has \"tools\" that are no list"};
    }
    if (!list.empty()) {
      conversation.tools = jinja::from_json(list);
    }
  }
  if (const Json* const names = find(object, "chat_template_kwargs"); names && names->is_object()) {
    for (const auto& [name, value] : names->items()) {
      conversation.more.emplace_back(name, jinja::from_json(value));
    }
  }
}

/// ShareGPT's speakers.
std::string_view role_of(const std::string& speaker) {
  static constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
      {"human", "user"},
      {"user", "user"},
      {"gpt", "assistant"},
      {"assistant", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"model", "assistant"},
      {"bot", "assistant"},
      {"system", "system"},
      {"tool", "tool"},
      {"observation", "tool"},
      {"function_response", "tool"}};
  for (const auto& [name, role] : kRoles) {
    if (name == speaker) {
      return role;
    }
  }
  throw Refusal{
      fmt::format("has a message \"from\" \"{}\", expected \"human\", \"gpt\", "
                  "\"system\", \"observation\" or \"function_call\"",
                  speaker)};
}

/// A ShareGPT call of a tool is the JSON text of one call or of several.
Json tool_calls_of(const std::string& text) {
  Json calls = Json::parse(text, nullptr, false);
  if (calls.is_object()) {
    calls = Json::array({calls});
  }
  Json made = Json::array();
  for (const Json& call : calls.is_array() ? calls : Json::array()) {
    if (!call.is_object() || !call.contains("name")) {
      made.clear();
      break;
    }
    made.push_back({{"type", "function"}, {"function", call}});
  }
  if (made.empty()) {
    throw Refusal{"has a \"function_call\" that is no JSON of a \"name\" and \"arguments\""};
  }
  return made;
}

ChatExample sharegpt(const Json& object, const Json& list) {
  if (!list.is_array()) {
    throw Refusal{"has \"conversations\" that are no list"};
  }
  const bool has_roles = !list.empty() && list.front().is_object() && list.front().contains("role");
  ChatExample example;
  if (has_roles) {
    example.answer.conversation.messages = messages_of(list, "\"conversations\"");
  } else {
    Json messages = Json::array();
    if (const Json* const system = find(object, "system")) {
      messages.push_back(message("system", string_of(*system, "\"system\"")));
    }
    for (const Json& one : list) {
      if (!one.is_object() || find(one, "from") == nullptr || find(one, "value") == nullptr) {
        throw Refusal{
            fmt::format("has \"conversations\" of which message {} has no \"from\" and "
                        "\"value\"",
                        messages.size() + 1)};
      }
      const std::string& from = string_of(one["from"], "\"from\"");
      const std::string& value = string_of(one["value"], "\"value\"");
      if (from == "function_call") {
        Json call = message("assistant", "");
        call["tool_calls"] = tool_calls_of(value);
        messages.push_back(std::move(call));
      } else {
        messages.push_back(message(role_of(from), value));
      }
    }
    example.answer.conversation.messages = messages_of(messages, "\"conversations\"");
  }
  take_context(object, example.answer.conversation);
  return example;
}

/// Alpaca's: the input goes below the instruction, and "history" has earlier questions and answers.
ChatExample alpaca(const Json& object) {
  Json messages = Json::array();
  if (const Json* const system = find(object, "system");
      system && !string_of(*system, "\"system\"").empty()) {
    messages.push_back(message("system", *system));
  }
  if (const Json* const history = find(object, "history")) {
    for (const Json& turn : *history) {
      if (!turn.is_array() || turn.size() != 2) {
        throw Refusal{"has a \"history\" that is no list of questions with their answers"};
      }
      messages.push_back(message("user", string_of(turn[0], "\"history\"")));
      messages.push_back(message("assistant", string_of(turn[1], "\"history\"")));
    }
  }
  std::string question = string_of(object["instruction"], "\"instruction\"");
  if (const Json* const input = find(object, "input");
      input && !string_of(*input, "\"input\"").empty()) {
    question += "\n" + input->get_ref<const std::string&>();
  }
  messages.push_back(message("user", question));
  messages.push_back(message("assistant", string_of(object["output"], "\"output\"")));
  ChatExample example;
  example.answer.conversation.messages = messages_of(messages, "messages");
  take_context(object, example.answer.conversation);
  return example;
}

/// A prompt and what follows it, both texts or both lists of messages.
Answer answer_of(const Json& object, const Json* prompt, const Json& completion, const char* name) {
  Answer answer;
  if (completion.is_string()) {
    answer.is_text = true;
    answer.text = completion.get<std::string>();
    if (prompt != nullptr) {
      answer.prompt = string_of(*prompt, "\"prompt\" beside a text");
    }
    return answer;
  }
  if (prompt != nullptr) {
    // A prompt of one text is the user's message.
    answer.conversation.messages =
        prompt->is_string() ? messages_of(Json::array({message("user", *prompt)}), "\"prompt\"")
                            : messages_of(*prompt, "\"prompt\"");
  }
  answer.prompt_messages = answer.conversation.messages.size();
  for (jinja::Value& one : messages_of(completion, name)) {
    answer.conversation.messages.push_back(std::move(one));
  }
  take_context(object, answer.conversation);
  return answer;
}

ChatExample pair(const Json& object, const Json& chosen, const Json& rejected) {
  const Json* prompt = find(object, "prompt");
  // Some data sets repeat the prompt of both conversations as a text.
  if (prompt != nullptr && prompt->is_string() && chosen.is_array()) {
    prompt = nullptr;
  }
  ChatExample example{.kind = Kind::kPair,
                      .answer = answer_of(object, prompt, chosen, "\"chosen\""),
                      .rejected = answer_of(object, prompt, rejected, "\"rejected\"")};
  if (example.answer.is_text != example.rejected->is_text) {
    throw Refusal{"has a \"chosen\" and a \"rejected\" of which one is a text, the other messages"};
  }
  if (prompt != nullptr) {
    return example;
  }
  // The prompt is the part that both begin with.
  Answer& a = example.answer;
  Answer& b = *example.rejected;
  if (a.is_text) {
    const auto differ = std::mismatch(a.text.begin(), a.text.end(), b.text.begin(), b.text.end());
    auto same = static_cast<std::size_t>(differ.first - a.text.begin());
    // Not within a character, and the space in front of a word belongs to the word.
    while (same > 0 && same < a.text.size() &&
           (static_cast<unsigned char>(a.text[same]) & 0xC0U) == 0x80U) {
      --same;
    }
    if (same > 0 && a.text[same - 1] == ' ') {
      --same;
    }
    a.prompt = b.prompt = a.text.substr(0, same);
    a.text.erase(0, same);
    b.text.erase(0, same);
  } else {
    const jinja::Items& x = a.conversation.messages;
    const jinja::Items& y = b.conversation.messages;
    const auto differ = std::mismatch(x.begin(), x.end(), y.begin(), y.end(), jinja::equal);
    a.prompt_messages = b.prompt_messages = static_cast<std::size_t>(differ.first - x.begin());
  }
  return example;
}

ChatExample example_of(const Json& object) {
  if (const Json* const chosen = find(object, "chosen")) {
    if (const Json* const rejected = find(object, "rejected")) {
      return pair(object, *chosen, *rejected);
    }
    throw Refusal{"has a \"chosen\" without a \"rejected\""};
  }
  if (const Json* const list = find(object, "messages")) {
    ChatExample example;
    example.answer.conversation.messages = messages_of(*list, "\"messages\"");
    take_context(object, example.answer.conversation);
    return example;
  }
  for (const char* const name : {"conversations", "conversation"}) {
    if (const Json* const list = find(object, name)) {
      return sharegpt(object, *list);
    }
  }
  if (const Json* const prompt = find(object, "prompt")) {
    for (const char* const name : {"completion", "response"}) {
      if (const Json* const completion = find(object, name)) {
        const Json* const label = find(object, "label");
        if (label != nullptr && !label->is_boolean()) {
          throw Refusal{"has a \"label\" that is neither true nor false"};
        }
        return {.kind = label != nullptr ? Kind::kRated : Kind::kCompletion,
                .answer = answer_of(object, prompt, *completion, "\"completion\""),
                .is_liked = label == nullptr || label->get<bool>()};
      }
    }
  }
  if (find(object, "instruction") != nullptr && find(object, "output") != nullptr) {
    return alpaca(object);
  }
  if (const Json* const text = find(object, "text")) {
    return {.kind = Kind::kText, .answer = {.is_text = true, .text = string_of(*text, "\"text\"")}};
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    keys.push_back(fmt::format("\"{}\"", key));
  }
  throw Refusal{
      fmt::format("has none of \"messages\", \"conversations\", \"prompt\" with "
                  "\"completion\", \"chosen\" with \"rejected\", \"instruction\" with "
                  "\"output\", \"text\"{}",
                  keys.empty() ? "" : fmt::format(" (but {})", fmt::join(keys, ", ")))};
}

ChatPrompt prompt_of(const Json& object) {
  const Json* const prompt = find(object, "prompt");
  if (prompt != nullptr && prompt->is_string()) {
    return {.is_text = true, .text = prompt->get<std::string>()};
  }
  const Json* const messages = prompt != nullptr ? prompt : find(object, "messages");
  if (messages == nullptr) throw Refusal{"has no \"prompt\""};
  ChatPrompt made;
  made.conversation.messages =
      messages_of(*messages, prompt != nullptr ? "\"prompt\"" : "\"messages\"");
  take_context(object, made.conversation);
  return made;
}

/// What `read` makes of the object that a line is, or why not.
template <typename Made>
std::variant<Made, std::string> read_line(std::string_view line, Made (*read)(const Json&)) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    return "is not JSON";
  }
  if (!json.is_object()) {
    return fmt::format("is {}, expected an object", json.type_name());
  }
  try {
    return read(json);
  } catch (Refusal& refusal) {
    return std::move(refusal.why);
  }
}

}  // namespace

std::variant<ChatPrompt, std::string> read_chat_prompt(std::string_view line) {
  return read_line<ChatPrompt>(line, prompt_of);
}

std::variant<ChatExample, std::string> read_chat_example(std::string_view line) {
  return read_line<ChatExample>(line, example_of);
}

}  // namespace dstrain
