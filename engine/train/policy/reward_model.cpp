#include "engine/train/policy/reward_model.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/run_facts.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

WeightsSource open(const std::string& folder) {
  WeightsSource weights = open_weights(folder);
  merge_adapters(weights);
  return weights;
}

std::optional<ChatTemplate> chat_template_in(const std::filesystem::path& folder) {
  if (!ChatTemplate::is_in(folder)) return std::nullopt;
  return ChatTemplate::find(folder, folder);
}

}  // namespace

RewardModel::RewardModel(const std::string& folder, Engine& engine)
    : RewardModel(open(folder), folder, engine) {}

RewardModel::RewardModel(WeightsSource weights, const std::string& folder, Engine& engine)
    : folder_(folder),
      tokenizer_(find_tokenizer(
          "", weights.path, read_run_facts(weights.training.config, weights.training.tokenizer))),
      chat_(chat_template_in(weights.path)),
      model_(*engine.plan().scoring, engine.context().ops, engine.device(), *weights.tensors) {}

std::vector<std::int32_t> RewardModel::ids_of(const ChatPrompt& prompt,
                                              const std::string& completion) const {
  const Tokenizer& tokenizer = *tokenizer_.tokenizer;
  std::vector<std::int32_t> ids;
  if (prompt.is_text) {
    const auto beginning = tokenizer.beginning_of_text();
    if (beginning && (tokenizer_.always_begins || tokenizer.always_begins())) {
      ids.push_back(*beginning);
    }
    tokenizer.encode(prompt.text + completion, ids);
    const auto end = tokenizer.end_of_text();
    if (end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
    return ids;
  }
  if (!chat_) {
    throw ConfigError(fmt::format(
        "holds messages, and {}, which scores their answers, has no chat template", folder_));
  }
  Conversation conversation = prompt.conversation;
  conversation.messages.push_back(jinja::Value::dict(
      {{"role", jinja::Value("assistant")}, {"content", jinja::Value(completion)}}));
  try {
    tokenizer.encode(
        chat_->render(conversation, conversation.messages.size(), ChatTemplate::Ends::kWithMessage)
            .text,
        ids);
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("the chat template of {}: {}", chat_->file(), error.what()));
  }
  return ids;
}

double RewardModel::score(const ChatPrompt& prompt, const std::string& completion) {
  const std::vector<std::int32_t> ids = ids_of(prompt, completion);
  const std::int64_t size = std::ssize(ids);
  const std::int64_t room = model_.sizes().positions;
  if (size < 1 || size > room) {
    throw ConfigError(fmt::format(
        "has {} tokens with its answer for {}, expected 1 to {}: twice data.sequence_length, or "
        "the model's positions where these are fewer",
        size, folder_, room));
  }
  for (const std::int32_t id : ids) {
    if (id >= model_.spec().vocab_size) {
      throw ConfigError(
          fmt::format("token {} of tokenizer {} is outside the vocabulary of {} that {} has", id,
                      tokenizer_.name, model_.spec().vocab_size, folder_));
    }
  }
  model_.rewind(0);
  const double score = static_cast<double>(model_.extend(ids).front());
  if (!std::isfinite(score)) {
    throw ConfigError(fmt::format("has an answer that {} scores {}", folder_, score));
  }
  return score;
}

}  // namespace dstrain
