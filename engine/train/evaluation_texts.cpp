#include "engine/train/evaluation_texts.h"

#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/chat/chat_template.h"
#include "engine/checkpoint/agreement.h"
#include "engine/config/config_error.h"
#include "engine/generate/text_generator.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

FoundTokenizer tokenizer_of(const Config& config) {
  RunFacts run{.compute = {}, .data_folders = {}, .initial_weights = config.initial_weights};
  for (const DataSource& source : config.data.train) {
    run.data_folders.push_back(fs::path(source.prefix).parent_path());
  }
  return find_tokenizer(config.data.sample.tokenizer, config.initial_weights, run);
}

/// The template by which conversations are written; nothing where the run has none.
std::optional<ChatTemplate> chat_template_of(const Config& config) {
  const SampleConfig& sample = config.data.sample;
  if (!config.data.samples) return std::nullopt;
  const fs::path folder = sample.tokenizer.empty()
                              ? fs::path(config.initial_weights)
                              : TokenizerSource::find(sample.tokenizer).folder();
  const fs::path path = sample.chat_template.empty() ? folder : fs::path(sample.chat_template);
  if (sample.chat_template.empty() && (folder.empty() || !ChatTemplate::is_in(folder))) {
    return std::nullopt;
  }
  return ChatTemplate::find(path, folder);
}

/// What a user asks, as the template writes it: the model's answer comes next.
std::string as_question(const ChatTemplate& chat, const std::string& text) {
  Conversation conversation;
  conversation.messages.push_back(
      jinja::Value::dict({{"role", jinja::Value("user")}, {"content", jinja::Value(text)}}));
  try {
    return chat.render(conversation, 1, ChatTemplate::Ends::kWithPrompt).text;
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("training.eval_prompts: the chat template of {}: {}", chat.file(),
                                  error.what()));
  }
}

}  // namespace

EvaluationTexts::EvaluationTexts(const Config& config, Engine& engine)
    : config_(config), engine_(engine), tokenizer_(tokenizer_of(config)), sampler_(engine) {
  if (!config.data.sample.stop_token.empty()) {
    std::vector<std::int32_t> ids;
    tokenizer_.tokenizer->encode(config.data.sample.stop_token, ids);
    if (ids.size() == 1) tokenizer_.ends.push_back(ids.front());
  }
  const std::optional<ChatTemplate> chat = chat_template_of(config);
  for (const std::string& prompt : config.training.eval_prompts) {
    std::vector<std::int32_t> ids;
    if (!chat && tokenizer_.beginning && tokenizer_.always_begins) {
      ids.push_back(*tokenizer_.beginning);
    }
    tokenizer_.tokenizer->encode(chat ? as_question(*chat, prompt) : prompt, ids);
    const std::int64_t room = engine.plan().sampling->sizes.positions - config.training.eval_tokens;
    if (ids.empty() || std::ssize(ids) > room) {
      throw ConfigError(fmt::format(
          "training.eval_prompts: \"{}\" has {} tokens; {} behind data.sequence_length {} and "
          "training.eval_tokens {}",
          prompt, ids.size(),
          ids.empty() ? "expected at least one" : fmt::format("room for {}", room),
          engine.plan().sampling->sizes.positions, config.training.eval_tokens));
    }
    for (const std::int32_t id : ids) {
      if (id >= config.model.vocab_size) {
        throw ConfigError(
            fmt::format("training.eval_prompts: token {} of tokenizer {} is outside the model's "
                        "vocabulary of {}",
                        id, tokenizer_.name, config.model.vocab_size));
      }
    }
    prompts_.push_back(std::move(ids));
  }
}

std::vector<SampledText> EvaluationTexts::sample() {
  Communicator& world = engine_.world();
  CachedModel& model = sampler_.begin();
  Json mine = Json::array();
  for (std::size_t i = static_cast<std::size_t>(world.rank()); i < prompts_.size();
       i += static_cast<std::size_t>(world.size())) {
    model.rewind(0);
    const GeneratedText made = generate_text(model, *tokenizer_.tokenizer,
                                             {.prompt = prompts_[i],
                                              .max_tokens = config_.training.eval_tokens,
                                              .sampling = {.temperature = 0.0},
                                              .ends = tokenizer_.ends},
                                             {});
    mine.push_back({i, made.text, made.tokens.size(), name_of(made.reason)});
  }
  const std::vector<std::string> all = gather_texts(mine.dump(), world);
  if (all.empty()) return {};
  std::vector<SampledText> texts(prompts_.size());
  for (const std::string& of_rank : all) {
    for (const Json& made : Json::parse(of_rank)) {
      const auto i = made[0].get<std::size_t>();
      texts[i] = {.prompt = config_.training.eval_prompts[i],
                  .text = made[1].get<std::string>(),
                  .tokens = made[2].get<std::int64_t>(),
                  .ended_by = made[3].get<std::string>()};
    }
  }
  return texts;
}

}  // namespace dstrain
