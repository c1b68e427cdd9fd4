#include "engine/train/evaluation_texts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/agreement.h"
#include "engine/config/config_error.h"
#include "engine/generate/text_generator.h"

namespace dstrain {

using Json = nlohmann::json;

EvaluationTexts::EvaluationTexts(const Config& config, Engine& engine)
    : config_(config), engine_(engine), encoder_(config), sampler_(engine) {
  const std::int64_t positions = engine.plan().sampling->sizes.positions;
  const std::int64_t room = positions - config.training.eval_tokens;
  const bool is_chat = config.data.samples || config.policy.enabled();
  const bool asks = is_chat && encoder_.has_template();
  for (const std::string& prompt : config.training.eval_prompts) {
    try {
      prompts_.push_back(asks ? encoder_.ids_of_question(prompt) : encoder_.ids_of(prompt));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("training.eval_prompts: {}", error.what()));
    }
    const std::int64_t size = std::ssize(prompts_.back());
    if (size >= 1 && size <= room) continue;
    throw ConfigError(fmt::format(
        "training.eval_prompts: \"{}\" has {} tokens; {} beside training.eval_tokens {} in "
        "data.sequence_length {}",
        prompt, size, size == 0 ? "expected at least one" : fmt::format("room for {}", room),
        config.training.eval_tokens, positions));
  }
}

std::vector<SampledText> EvaluationTexts::sample() {
  Communicator& world = engine_.world();
  CachedModel& model = sampler_.begin();
  Json mine = Json::array();
  const TextSampler::Readers readers = sampler_.readers();
  const Range share = readers.share(std::ssize(prompts_));
  for (auto i = static_cast<std::size_t>(share.begin); i < static_cast<std::size_t>(share.end);
       ++i) {
    model.rewind(0);
    const GeneratedText made = generate_text(model, encoder_.tokenizer(),
                                             {.prompt = prompts_[i],
                                              .max_tokens = config_.training.eval_tokens,
                                              .sampling = {.temperature = 0.0},
                                              .ends = encoder_.ends()},
                                             {});
    if (readers.tells) mine.push_back({i, made.text, made.tokens.size(), name_of(made.reason)});
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
