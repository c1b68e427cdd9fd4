#include "engine/data/prepare_options.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

}  // namespace

void check_options(const PrepareOptions& options) {
  if (options.input.empty()) {
    throw ConfigError("--input names nothing; expected files or folders of text or JSON lines");
  }
  if (options.longest_line < 1) {
    throw ConfigError(fmt::format("--longest-line {}: expected a number of bytes, 1 or more",
                                  options.longest_line));
  }
  if (!(options.validation >= 0.0 && options.validation < 1.0)) {
    throw ConfigError(fmt::format("--validation {}: expected a share in [0, 1), such as 0.05",
                                  options.validation));
  }
  if (options.append_eod && *options.append_eod < 0) {
    throw ConfigError(
        fmt::format("--append-eod {}: expected a token id, 0 or more", *options.append_eod));
  }
  if (!options.chat && (!options.chat_template.empty() || !options.stop_tokens.empty() ||
                        options.samples.answers_begin != AnswersBegin::kPrompt ||
                        options.samples.train_on != TrainOn::kAssistant)) {
    throw ConfigError(
        "--chat-template, --train-on, --answers-begin and --stop-token are about conversations: "
        "expected --chat with them");
  }
  if (options.chat &&
      (options.field || options.append_eod || options.train_bpe || options.train_sentencepiece)) {
    throw ConfigError(
        "--chat: --field, --append-eod and the learning of tokenizers are about plain text, and "
        "have no part in it");
  }
  if (options.train_bpe) {
    check_bpe_training(*options.train_bpe);
  }
  for (const char* name : kOutputNames) {
    const std::string path = (fs::path(options.output) / name).string();
    std::error_code ignored;
    if (!options.overwrite && fs::exists(path, ignored)) {
      throw ConfigError(fmt::format("--output {}: {} already exists; --overwrite replaces it",
                                    options.output, path));
    }
  }
}

std::map<std::string, std::string> deciding_flags(const PrepareOptions& options) {
  return {{"--append-eod", options.append_eod ? fmt::format("{}", *options.append_eod) : "none"},
          {"--validation", options.validation_input.empty() ? fmt::format("{}", options.validation)
                                                            : "--validation-input"},
          {"--seed", fmt::format("{}", options.seed)},
          {"--field", options.field.value_or("text")},
          {"--longest-line", fmt::format("{}", options.longest_line)},
          {"--deduplicate", options.deduplicate ? "on" : "off"}};
}

}  // namespace dstrain
