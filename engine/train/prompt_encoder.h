// PromptEncoder: texts and conversations that the model of a run is to continue, as token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_example.h"
#include "engine/chat/chat_template.h"
#include "engine/config/config.h"
#include "engine/generate/find_tokenizer.h"

namespace dstrain {

class PromptEncoder {
 public:
  /// Finds the run's tokenizer and, where it has one, its chat template. Throws ConfigError.
  explicit PromptEncoder(const Config& config);

  /// Throw ConfigError where the template does, or an id is outside the model's vocabulary. A text
  /// as it stands:
  [[nodiscard]] std::vector<std::int32_t> ids_of(const std::string& text) const;
  /// A text, or messages with what asks for the model's answer.
  [[nodiscard]] std::vector<std::int32_t> ids_of(const ChatPrompt& prompt) const;
  /// The prompt in a line of JSON. The error is a clause: what the line has.
  [[nodiscard]] std::vector<std::int32_t> ids_in(std::string_view line) const;
  /// What a user asks.
  [[nodiscard]] std::vector<std::int32_t> ids_of_question(const std::string& text) const;

  [[nodiscard]] bool has_template() const { return chat_.has_value(); }
  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_.tokenizer; }
  /// Ids behind which nothing follows.
  [[nodiscard]] const std::vector<std::int32_t>& ends() const { return tokenizer_.ends; }

 private:
  [[nodiscard]] std::vector<std::int32_t> ids_of_conversation(const Conversation& asked) const;
  [[nodiscard]] std::vector<std::int32_t> checked(std::vector<std::int32_t> ids) const;

  std::int64_t vocab_size_;
  FoundTokenizer tokenizer_;
  std::optional<ChatTemplate> chat_;
};

}  // namespace dstrain
