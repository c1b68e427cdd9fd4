// dstrain generate --prompt: one text, as it comes.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/generate/generate.h"
#include "cmd/generate/prompted_model.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"
#include "engine/generate/loaded_model.h"
#include "engine/generate/log_probabilities.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

std::string given_text(const GenerateFlags& flags) {
  if (flags.prompt_file.empty()) {
    return flags.prompt.value_or("");
  }
  FileText file = read_regular_file(flags.prompt_file, kMostHandWrittenBytes, MayBePipe::kYes);
  if (!file.why.empty()) {
    throw ConfigError(
        fmt::format("--prompt-file {}: cannot be read: {}", flags.prompt_file, file.why));
  }
  return std::move(file.text);
}

void print_json(const GenerateFlags& flags,
                const std::string& prompt,
                const GenerationRequest& request,
                const GeneratedText& made,
                const std::vector<LogProbabilities>& probabilities,
                const std::string& tokenizer) {
  nlohmann::ordered_json json{{"checkpoint", flags.checkpoint},
                              {"tokenizer", tokenizer},
                              {"prompt", as_utf8(prompt)},
                              {"prompt_tokens", request.prompt},
                              {"text", made.text},
                              {"tokens", made.tokens},
                              {"ended_by", name_of(made.reason)},
                              {"seed", request.sampling.seed},
                              {"prompt_seconds", made.prompt_seconds},
                              {"token_seconds", made.token_seconds}};
  for (const LogProbabilities& of_token : probabilities) {
    auto likeliest = nlohmann::ordered_json::array();
    for (const auto& [token, log_probability] : of_token.likeliest) {
      likeliest.push_back({token, log_probability});
    }
    json["logprobs"].push_back({{"logprob", of_token.chosen}, {"likeliest", likeliest}});
  }
  print_to_stdout(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                  "\n");
}

}  // namespace

int generate_one(const GenerateFlags& flags) {
  const PromptedModel model(flags);
  const PromptedModel::Prompt prompt = model.prompt_of(given_text(flags));
  const GenerationRequest request = model.request(prompt, "--prompt");
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  const GenerationPlan plan = model.plan(length + request.max_tokens, 1, length);
  Backend backend = model.backend();
  model.log(plan, *backend.device);
  check_memory(plan, *backend.device);
  const StopSignal stop;
  LoadedModel reader(plan, *backend.ops, *backend.device, model.weights());

  if (!flags.json && !flags.chat) {
    print_to_stdout(as_utf8(prompt.text));
  }
  std::vector<LogProbabilities> probabilities;
  const GeneratedText made = generate_text(
      reader, model.tokenizer(), request,
      {.on_text =
           [&](std::string_view text) {
             if (!flags.json) print_to_stdout(text);
           },
       .on_token =
           [&](std::int32_t token, std::span<const float> logits) {
             if (flags.logprobs) {
               probabilities.push_back(log_probabilities(logits, token, *flags.logprobs));
             }
           },
       .stop_requested = [&] { return stop.number() != 0; }});
  if (flags.json) {
    print_json(flags, prompt.text, request, made, probabilities, model.tokenizer_name());
  } else {
    print_to_stdout("\n");
  }
  spdlog::info(
      "prompt_tokens={} prompt_seconds={:.3f} tokens={} tokens_per_second={:.1f} ended_by={}",
      length, made.prompt_seconds, made.tokens.size(),
      made.steps == 0 ? 0.0 : static_cast<double>(made.steps) / made.token_seconds,
      name_of(made.reason));
  return stop.number() == 0 ? kExitSuccess : kExitSignalBase + stop.number();
}

}  // namespace dstrain
