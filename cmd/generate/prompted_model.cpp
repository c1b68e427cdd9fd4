#include "cmd/generate/prompted_model.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/rank/rank_threads.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/run_facts.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "engine/data/disk_error.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

WeightsSource open_whole(const GenerateFlags& flags) {
  WeightsSource weights = open_weights(flags.checkpoint);
  if (weights.model.scores) {
    throw ConfigError(
        fmt::format("--checkpoint {}: a reward model, whose head scores text and writes none",
                    flags.checkpoint));
  }
  merge_adapters(weights, flags.base);
  return weights;
}

RunFacts facts_of(const WeightsSource& weights) {
  return read_run_facts(weights.training.config, weights.training.tokenizer);
}

/// The dtype that the user asked for, else the run's, else that of the weights.
DType compute_dtype(const GenerateFlags& flags, const RunFacts& run, const TensorSource& weights) {
  if (!flags.dtype.empty()) {
    return flags.dtype == "bf16" ? DType::kBF16 : flags.dtype == "fp16" ? DType::kF16 : DType::kF32;
  }
  if (run.compute) {
    return *run.compute;
  }
  const auto entries = weights.entries();
  return entries.empty() ? DType::kF32 : entries.front().dtype;
}

/// Checkpoints of older versions leave out the attention window, and the model's own config.json,
/// where it lies beside the weights, has it.
ModelSpec with_window(ModelSpec model, const std::filesystem::path& checkpoint) {
  const std::filesystem::path config = checkpoint / "config.json";
  std::error_code error;
  if (model.attention_window == 0 && std::filesystem::exists(config, error)) {
    const ModelSpec beside = load_model_spec(config.string());
    model.attention_window = beside.attention_window;
    model.first_window_layer = beside.first_window_layer;
  }
  return model;
}

jinja::Value message(const char* role, const std::string& content) {
  return jinja::Value::dict({{"role", role}, {"content", content}});
}

}  // namespace

PromptedModel::PromptedModel(const GenerateFlags& flags)
    : flags_(flags),
      weights_(open_whole(flags)),
      spec_(with_window(weights_.model, weights_.path)),
      compute_(compute_dtype(flags, facts_of(weights_), *weights_.tensors)),
      found_(find_tokenizer(flags.tokenizer, weights_.path, facts_of(weights_))),
      stops_(stop_ids_of(weights_.path)) {}

PromptedModel::Prompt PromptedModel::prompt_of(const std::string& text) const {
  if (!flags_.chat) return {.text = text};
  Conversation conversation;
  conversation.messages.push_back(message("user", text));
  return asked(std::move(conversation));
}

PromptedModel::Prompt PromptedModel::prompt_of(const ChatPrompt& prompt) const {
  return prompt.is_text ? prompt_of(prompt.text) : asked(prompt.conversation);
}

PromptedModel::Prompt PromptedModel::asked(Conversation conversation) const {
  if (!chat_) {
    chat_ = ChatTemplate::find(
        flags_.chat_template.empty() ? weights_.path : std::filesystem::path(flags_.chat_template),
        weights_.path);
  }
  if (flags_.system) {
    conversation.messages.insert(conversation.messages.begin(), message("system", *flags_.system));
  }
  try {
    return {.text = chat_
                        ->render(conversation, conversation.messages.size(),
                                 ChatTemplate::Ends::kWithPrompt)
                        .text,
            .is_asked = true};
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("the chat template of {}: {}", chat_->file(), error.what()));
  }
}

GenerationRequest PromptedModel::request(const Prompt& prompt, std::string_view where) const {
  GenerationRequest request{
      .sampling = flags_.sampling, .stops = flags_.stops, .ends = found_.ends};
  if (prompt.is_asked) request.ends.insert(request.ends.end(), stops_.begin(), stops_.end());
  std::vector<std::int32_t>& tokens = request.prompt;
  if (!prompt.is_asked && found_.beginning && (found_.always_begins || prompt.text.empty())) {
    tokens.push_back(*found_.beginning);
  }
  found_.tokenizer->encode(prompt.text, tokens);
  if (tokens.empty()) {
    throw ConfigError(
        fmt::format("{} is empty, and tokenizer {} has no token for the beginning of a text: give "
                    "at least one character to continue",
                    where, found_.name));
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= spec_.vocab_size) {
      throw ConfigError(fmt::format(
          "{}: token {} of tokenizer {} is outside the model's vocabulary of {}: this is not the "
          "tokenizer that the model was trained with; name that one with --tokenizer",
          where, token, found_.name, spec_.vocab_size));
    }
  }
  const auto length = static_cast<std::int64_t>(tokens.size());
  const std::int64_t room = spec_.max_positions - length;
  if (room < 1) {
    throw ConfigError(
        fmt::format("{} has {} tokens, but the model has {} positions, of which the text that "
                    "follows needs at least one: leave out {} tokens",
                    where, length, spec_.max_positions, 1 - room));
  }
  if (flags_.max_tokens && *flags_.max_tokens > room) {
    throw ConfigError(fmt::format(
        "--max-tokens {}: after {} of {} tokens, the model's {} positions leave room for {}",
        *flags_.max_tokens, where == "--prompt" ? "a prompt" : where, length, spec_.max_positions,
        room));
  }
  request.max_tokens = flags_.max_tokens.value_or(std::min(kDefaultTokens, room));
  return request;
}

Backend PromptedModel::backend() const {
  return make_cpu_backend(flags_.threads > 0 ? flags_.threads
                                             : omp_num_threads(process_environment).value_or(0));
}

GenerationPlan PromptedModel::plan(std::int64_t positions,
                                   std::int64_t texts,
                                   std::int64_t longest_prompt) const {
  const std::int64_t chunk = std::min(texts * longest_prompt, kPromptChunk);
  return plan_generation(spec_, {.compute = compute_,
                                 .positions = positions,
                                 .texts = texts,
                                 .chunk_tokens = std::max(texts, chunk)});
}

void PromptedModel::log(const GenerationPlan& plan, const Device& device) const {
  spdlog::info("checkpoint={} model_type={} compute={} tokenizer={} device=\"{}\"",
               weights_.path.string(), spec_.model_type, name_of(plan.sizes.compute), found_.name,
               device.description());
  spdlog::info("memory {}", describe_memory(plan));
}

void check_memory(const GenerationPlan& plan, Device& device) {
  const std::int64_t free = device.memory_info().available_bytes;
  if (plan.memory.bytes() <= free) return;
  const std::int64_t texts = plan.sizes.texts;
  throw launcher::PreflightError(
      fmt::format("generation{} takes {}, and {} is free: {}",
                  texts > 1 ? fmt::format(" of {} texts at a time", texts) : "",
                  size_text(plan.memory.bytes()), size_text(free),
                  texts > 1                           ? "a smaller --batch-size takes less"
                  : plan.sizes.compute == DType::kF32 ? "--dtype bf16 takes half of that"
                                                      : "fewer --max-tokens take less"));
}

void print_to_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw DiskError(fmt::format("cannot write to stdout: {}", strerror(errno)));
  }
}

}  // namespace dstrain
