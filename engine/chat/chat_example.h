// ChatExample: what one JSON line of fine-tuning data says, whichever of the usual forms it has.
//
//   {"messages": [{"role": …, "content": …}, …], "tools": […]}      conversations
//   {"conversations": [{"from": "human", "value": …}, …]}           ShareGPT's
//   {"instruction": …, "input": …, "output": …}                     Alpaca's
//   {"prompt": …, "completion": …}                                  texts, or lists of messages
//   {"prompt": …, "completion": …, "label": true}                   … that is liked, or not
//   {"prompt": …, "chosen": …, "rejected": …}                       pairs; the prompt may be in
//   both
//   {"text": …}                                                     a text, all of which is learned
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/chat/chat_template.h"

namespace dstrain {

/// A question and its answer: as texts, or as the messages of a conversation.
struct Answer {
  Conversation conversation{};      ///< the prompt's messages, then the answer's
  std::size_t prompt_messages = 0;  ///< how many of them are the prompt's
  bool is_text = false;             ///< these two instead:
  std::string prompt{};
  std::string text{};
};

struct ChatExample {
  enum class Kind : std::uint8_t {
    kConversation,  ///< every turn of the assistant is an answer
    kCompletion,    ///< what follows the prompt is
    kText,          ///< `answer.text`, without a prompt
    kPair,          ///< `answer` was preferred to `rejected`
    kRated          ///< `is_liked` says what was thought of `answer`
  };
  Kind kind = Kind::kConversation;
  Answer answer{};
  std::optional<Answer> rejected{};
  bool is_liked = true;
};

/// What a model is to answer: the "prompt" of a line, a text or messages; or its "messages".
struct ChatPrompt {
  Conversation conversation{};  ///< unless it is a text
  bool is_text = false;
  std::string text{};
};
/// The prompt, or a clause that says why the line has none.
std::variant<ChatPrompt, std::string> read_chat_prompt(std::string_view line);

/// The example, or, where the line is none, a clause that says why: "has no …".
std::variant<ChatExample, std::string> read_chat_example(std::string_view line);

}  // namespace dstrain
