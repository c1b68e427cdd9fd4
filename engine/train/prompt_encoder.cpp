#include "engine/train/prompt_encoder.h"

#include <filesystem>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

FoundTokenizer tokenizer_of(const Config& config) {
  RunFacts run{.compute = {}, .data_folders = {}, .initial_weights = config.initial_weights};
  for (const DataSource& source : config.data.train) {
    run.data_folders.push_back(fs::path(source.prefix).parent_path());
  }
  FoundTokenizer found = find_tokenizer(config.data.sample.tokenizer, config.initial_weights, run);
  if (!config.data.sample.stop_token.empty()) {
    std::vector<std::int32_t> ids;
    found.tokenizer->encode(config.data.sample.stop_token, ids);
    if (ids.size() == 1) found.ends.push_back(ids.front());
  }
  return found;
}

/// The template by which conversations are written; nothing where the run has none.
std::optional<ChatTemplate> chat_template_of(const Config& config) {
  const SampleConfig& sample = config.data.sample;
  const fs::path folder = sample.tokenizer.empty()
                              ? fs::path(config.initial_weights)
                              : TokenizerSource::find(sample.tokenizer).folder();
  const fs::path path = sample.chat_template.empty() ? folder : fs::path(sample.chat_template);
  if (sample.chat_template.empty() && (folder.empty() || !ChatTemplate::is_in(folder))) {
    return std::nullopt;
  }
  return ChatTemplate::find(path, folder);
}

}  // namespace

PromptEncoder::PromptEncoder(const Config& config)
    : vocab_size_(config.model.vocab_size),
      tokenizer_(tokenizer_of(config)),
      chat_(chat_template_of(config)) {}

std::vector<std::int32_t> PromptEncoder::ids_of(const std::string& text) const {
  std::vector<std::int32_t> ids;
  if (tokenizer_.beginning && tokenizer_.always_begins) ids.push_back(*tokenizer_.beginning);
  tokenizer_.tokenizer->encode(text, ids);
  return checked(std::move(ids));
}

std::vector<std::int32_t> PromptEncoder::ids_of(const ChatPrompt& prompt) const {
  return prompt.is_text ? ids_of(prompt.text) : ids_of_conversation(prompt.conversation);
}

std::vector<std::int32_t> PromptEncoder::ids_in(std::string_view line) const {
  const auto prompt = read_chat_prompt(line);
  if (const auto* const why = std::get_if<std::string>(&prompt)) throw ConfigError(*why);
  return ids_of(std::get<ChatPrompt>(prompt));
}

std::vector<std::int32_t> PromptEncoder::ids_of_question(const std::string& text) const {
  Conversation conversation;
  conversation.messages.push_back(
      jinja::Value::dict({{"role", jinja::Value("user")}, {"content", jinja::Value(text)}}));
  return ids_of_conversation(conversation);
}

std::vector<std::int32_t> PromptEncoder::ids_of_conversation(const Conversation& asked) const {
  if (!chat_) {
    throw ConfigError(
        "data.chat_template: missing: messages are written by a template, and there is none beside "
        "the tokenizer");
  }
  std::string text;
  try {
    text = chat_->render(asked, asked.messages.size(), ChatTemplate::Ends::kWithPrompt).text;
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("the chat template of {}: {}", chat_->file(), error.what()));
  }
  std::vector<std::int32_t> ids;  // a template writes itself what goes in front
  tokenizer_.tokenizer->encode(text, ids);
  return checked(std::move(ids));
}

std::vector<std::int32_t> PromptEncoder::checked(std::vector<std::int32_t> ids) const {
  for (const std::int32_t id : ids) {
    if (id >= vocab_size_) {
      throw ConfigError(
          fmt::format("token {} of tokenizer {} is outside the model's vocabulary of {}", id,
                      tokenizer_.name, vocab_size_));
    }
  }
  return ids;
}

}  // namespace dstrain
