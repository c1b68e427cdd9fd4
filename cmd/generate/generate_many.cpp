// dstrain generate --prompts: many texts of one model, read side by side.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/generate/generate.h"
#include "cmd/generate/prompted_model.h"
#include "cmd/logging.h"
#include "cmd/rank/stop_signal.h"
#include "engine/config/config_error.h"
#include "engine/data/prompt_lines.h"
#include "engine/generate/loaded_model.h"

namespace dstrain {
namespace {

constexpr auto kBetweenNews = std::chrono::seconds(10);
constexpr std::size_t kMostErrors = 20;

PromptedModel::Prompt prompt_in(std::string_view line, const PromptedModel& model) {
  const auto prompt = read_chat_prompt(line);
  if (const auto* const why = std::get_if<std::string>(&prompt)) throw ConfigError(*why);
  return model.prompt_of(std::get<ChatPrompt>(prompt));
}

GenerationRequest request_of(const PromptLines& lines, std::int64_t i, const PromptedModel& model) {
  const std::string where = lines.where(i);
  PromptedModel::Prompt prompt;
  try {
    prompt = prompt_in(lines.line(i), model);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
  return model.request(prompt, where);
}

/// The requests of a file's lines, as many for each as --samples says. Throws one ConfigError for
/// all lines that are wrong.
std::vector<GenerationRequest> requests_of(const PromptLines& lines,
                                           const PromptedModel& model,
                                           const GenerateFlags& flags) {
  std::vector<GenerationRequest> requests;
  std::vector<std::string> errors;
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    try {
      const GenerationRequest request = request_of(lines, i, model);
      for (std::int64_t sample = 0; sample < flags.samples; ++sample) {
        requests.push_back(request);
        requests.back().sampling.seed += requests.size() - 1;
      }
    } catch (const ConfigError& error) {
      errors.emplace_back(error.what());
    }
  }
  if (errors.size() > kMostErrors) {
    const std::size_t more = errors.size() - kMostErrors;
    errors.resize(kMostErrors);
    errors.push_back(fmt::format("and {} more lines like these", more));
  }
  if (!errors.empty()) throw ConfigError(fmt::format("{}", fmt::join(errors, "\n")));
  return requests;
}

/// The plan for as many texts side by side as were asked for; or else as are useful, and fit.
GenerationPlan plan_texts(const PromptedModel& model,
                          const std::vector<GenerationRequest>& requests,
                          const GenerateFlags& flags,
                          Device& device) {
  std::int64_t positions = 0;
  std::int64_t longest = 0;
  for (const GenerationRequest& request : requests) {
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    positions = std::max(positions, length + request.max_tokens);
    longest = std::max(longest, length);
  }
  if (flags.batch_size.value_or(1) > 1 &&
      !CachedModel::reads_side_by_side(model.spec(), positions)) {
    throw ConfigError(fmt::format(
        "--batch-size {}: this model rotates texts of {} positions otherwise than short ones "
        "(LongRoPE), and so reads one at a time: expected 1",
        *flags.batch_size, positions));
  }
  std::int64_t texts = std::min(flags.batch_size.value_or(kDefaultTexts), std::ssize(requests));
  if (!CachedModel::reads_side_by_side(model.spec(), positions)) texts = 1;
  const std::int64_t free = device.memory_info().available_bytes;
  GenerationPlan plan = model.plan(positions, texts, longest);
  while (!flags.batch_size && texts > 1 && plan.memory.bytes() > free) {
    texts /= 2;
    plan = model.plan(positions, texts, longest);
  }
  check_memory(plan, device);
  return plan;
}

/// A prompt's line with what the model has made of it: a text for a text, a message for messages.
/// Fine-tuning would take "messages" for a whole conversation, so these become the "prompt".
std::string answered(std::string_view line, const GeneratedText& made) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(line);
  if (!json.contains("prompt")) {
    json["prompt"] = json["messages"];
    json.erase("messages");
  }
  const bool is_text = json["prompt"].is_string();
  json["completion"] =
      is_text ? nlohmann::ordered_json(made.text)
              : nlohmann::ordered_json::array({{{"role", "assistant"}, {"content", made.text}}});
  json["completion_tokens"] = made.tokens.size();
  json["ended_by"] = name_of(made.reason);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// Tells now and then how far it is.
class TextsProgress {
 public:
  explicit TextsProgress(std::size_t texts) : texts_(texts) {}
  void ended(const GeneratedText& made) {
    ++ended_;
    tokens_ += std::ssize(made.tokens);
    if (std::chrono::steady_clock::now() - told_ >= kBetweenNews && ended_ < texts_) {
      told_ = std::chrono::steady_clock::now();
      tell();
    }
  }
  void tell() const {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    spdlog::info("texts={}/{} tokens={} tokens_per_second={:.1f}", ended_, texts_, tokens_,
                 static_cast<double>(tokens_) / seconds);
  }

 private:
  const std::size_t texts_;
  std::size_t ended_ = 0;
  std::int64_t tokens_ = 0;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point told_ = began_;
};

}  // namespace

int generate_many(const GenerateFlags& flags) {
  const PromptedModel model(flags);
  const PromptLines lines({{.prefix = flags.prompts}}, 0);
  const std::vector<GenerationRequest> requests = requests_of(lines, model, flags);
  Backend backend = model.backend();
  const GenerationPlan plan = plan_texts(model, requests, flags, *backend.device);
  model.log(plan, *backend.device);
  spdlog::info("prompts={} samples={} batch_size={}", lines.size(), flags.samples,
               plan.sizes.texts);
  const StopSignal stop;
  LoadedModel reader(plan, *backend.ops, *backend.device, model.weights());

  TextsProgress progress(requests.size());
  std::vector<std::optional<GeneratedText>> waiting(requests.size());  // for those before them
  std::size_t printed = 0;
  generate_texts(reader, model.tokenizer(), requests,
                 {.on_end =
                      [&](std::size_t request, GeneratedText made) {
                        progress.ended(made);
                        waiting[request] = std::move(made);
                        for (; printed < waiting.size() && waiting[printed]; ++printed) {
                          const auto line = static_cast<std::int64_t>(printed) / flags.samples;
                          print_to_stdout(answered(lines.line(line), *waiting[printed]));
                          waiting[printed].reset();
                        }
                      },
                  .stop_requested = [&] { return stop.number() != 0; }});
  progress.tell();
  if (stop.number() == 0) return kExitSuccess;
  spdlog::warn("interrupted after {} of {} texts; the last of them may be cut short", printed,
               requests.size());
  return kExitSignalBase + stop.number();
}

}  // namespace dstrain
