#include "cmd/inspect/inspected_prompts.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/inspect/inspected_text.h"
#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/data/prompt_lines.h"
#include "engine/train/prompt_encoder.h"

namespace dstrain {
namespace {

struct Prompt {
  std::string where;  ///< "prompts.jsonl:3"
  std::vector<std::int32_t> ids;
  std::string text;
};

Prompt prompt_of(const PromptLines& lines, std::int64_t line, const PromptEncoder& encoder) {
  try {
    Prompt prompt{.where = lines.where(line), .ids = encoder.ids_in(lines.line(line))};
    prompt.text = encoder.tokenizer().decode(prompt.ids);
    return prompt;
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", lines.where(line), error.what()));
  }
}

}  // namespace

std::string inspected_prompts(const Config& config, std::int64_t prompts, PromptForm form) {
  using Json = nlohmann::ordered_json;
  const PolicyConfig& policy = config.policy;
  const PromptEncoder encoder(config);
  const PromptLines lines(config.data.train, config.training.seed);
  std::vector<Prompt> shown;
  for (std::int64_t i = 0; i < std::min(prompts, lines.size()); ++i) {
    shown.push_back(prompt_of(lines, lines.draw(i), encoder));
  }
  if (form == PromptForm::kFirst) {
    return fmt::format("\nfirst prompt, {}, {}:\n  {}\n", shown.front().where,
                       counted(std::ssize(shown.front().ids), "token"),
                       visible(shown.front().text));
  }
  if (form == PromptForm::kJson) {
    Json all{{"prompts", Json::array()}};
    for (const Prompt& prompt : shown) {
      all["prompts"].push_back(
          {{"where", prompt.where}, {"ids", prompt.ids}, {"text", prompt.text}});
    }
    constexpr int kIndent = 2;
    return all.dump(kIndent, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  std::string text =
      fmt::format("{}; a prompt has up to {} ({} less {})\n", counted(lines.size(), "prompt"),
                  counted(config.data.sequence_length - policy.completion_tokens, "token"),
                  "data.sequence_length", policy.longest_key());
  for (std::size_t i = 0; i < shown.size(); ++i) {
    text += fmt::format("\nprompt {}: {}, {}\n  {}\n", i, shown[i].where,
                        counted(std::ssize(shown[i].ids), "token"), visible(shown[i].text));
  }
  return text;
}

}  // namespace dstrain
