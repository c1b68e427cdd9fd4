// dstrain generate: text from a trained model, on one process. Text goes to stdout as it comes,
// everything about it to stderr.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "cmd/rank/rank_threads.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/amount_text.h"
#include "engine/base/regular_file.h"
#include "engine/chat/chat_template.h"
#include "engine/checkpoint/run_facts.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "engine/data/disk_error.h"
#include "engine/generate/find_tokenizer.h"
#include "engine/generate/loaded_model.h"
#include "engine/generate/log_probabilities.h"
#include "engine/generate/text_generator.h"
#include "engine/tokenizer/whole_characters.h"
#include "kernels/backend.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

constexpr std::int64_t kDefaultTokens = 128;

struct Flags {
  std::string checkpoint;
  std::string base;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::optional<std::int64_t> max_tokens;
  SamplingRule sampling;
  std::vector<std::string> stops;
  std::string tokenizer;
  std::string dtype;
  int threads = 0;
  bool json = false;
  std::optional<std::int64_t> logprobs;
  bool chat = false;
  std::optional<std::string> system;
  std::string chat_template;
};

std::string prompt_text(const Flags& flags) {
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

/// The question as the model's chat template asks it: what the model answers comes next.
std::string as_question(const std::string& text,
                        const Flags& flags,
                        const std::filesystem::path& checkpoint) {
  const ChatTemplate chat = ChatTemplate::find(
      flags.chat_template.empty() ? checkpoint : std::filesystem::path(flags.chat_template),
      checkpoint);
  const auto message = [](const char* role, const std::string& content) {
    return jinja::Value::dict({{"role", role}, {"content", content}});
  };
  Conversation conversation;
  if (flags.system) {
    conversation.messages.push_back(message("system", *flags.system));
  }
  conversation.messages.push_back(message("user", text));
  try {
    return chat.render(conversation, conversation.messages.size(), ChatTemplate::Ends::kWithPrompt)
        .text;
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(
        fmt::format("--chat: the chat template of {}: {}", chat.file(), error.what()));
  }
}

/// The dtype that the user asked for, else the run's, else that of the weights.
DType compute_dtype(const Flags& flags, const RunFacts& run, const TensorSource& weights) {
  if (!flags.dtype.empty()) {
    return flags.dtype == "bf16" ? DType::kBF16 : flags.dtype == "fp16" ? DType::kF16 : DType::kF32;
  }
  if (run.compute) {
    return *run.compute;
  }
  const auto entries = weights.entries();
  return entries.empty() ? DType::kF32 : entries.front().dtype;
}

std::vector<std::int32_t> prompt_tokens(const std::string& text,
                                        const FoundTokenizer& found,
                                        const ModelSpec& model,
                                        bool is_chat) {
  std::vector<std::int32_t> tokens;
  // A chat template writes itself what goes in front.
  if (!is_chat && found.beginning && (found.always_begins || text.empty())) {
    tokens.push_back(*found.beginning);
  }
  found.tokenizer->encode(text, tokens);
  if (tokens.empty()) {
    throw ConfigError(
        fmt::format("--prompt is empty, and tokenizer {} has no token for the beginning of a text: "
                    "give at least "
                    "one character to continue",
                    found.name));
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) {
      throw ConfigError(fmt::format(
          "--prompt: token {} of tokenizer {} is outside the model's vocabulary of {}: this is not "
          "the tokenizer that the model was trained with; name that one with --tokenizer",
          token, found.name, model.vocab_size));
    }
  }
  return tokens;
}

/// The number of tokens to draw: as many as were asked for, if the model has positions for them.
std::int64_t tokens_to_draw(const Flags& flags, std::int64_t prompt, const ModelSpec& model) {
  const std::int64_t room = model.max_positions - prompt;
  if (room < 1) {
    throw ConfigError(
        fmt::format("--prompt has {} tokens, but the model has {} positions, of which the text "
                    "that follows needs at least one: leave out {} tokens",
                    prompt, model.max_positions, 1 - room));
  }
  if (flags.max_tokens && *flags.max_tokens > room) {
    throw ConfigError(
        fmt::format("--max-tokens {}: after a prompt of {} tokens, the model's {} positions leave "
                    "room for {}",
                    *flags.max_tokens, prompt, model.max_positions, room));
  }
  return flags.max_tokens.value_or(std::min(kDefaultTokens, room));
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

void check_memory(const GenerationPlan& plan, Device& device) {
  const std::int64_t free = device.memory_info().available_bytes;
  if (plan.memory.bytes() > free) {
    throw launcher::PreflightError(fmt::format(
        "generation takes {}, and {} is free: {}", size_text(plan.memory.bytes()), size_text(free),
        plan.sizes.compute == DType::kF32 ? "--dtype bf16 takes half of that"
                                          : "fewer --max-tokens take less"));
  }
}

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw DiskError(fmt::format("cannot write to stdout: {}", strerror(errno)));
  }
}

void print_json(const Flags& flags,
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
  print_text(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

int generate(const Flags& flags) {
  set_up_logging("[generate] ");
  WeightsSource weights = open_weights(flags.checkpoint);
  if (weights.model.scores) {
    throw ConfigError(
        fmt::format("--checkpoint {}: a reward model, whose head scores text and writes none",
                    flags.checkpoint));
  }
  merge_adapters(weights, flags.base);
  const ModelSpec model = with_window(weights.model, weights.path);
  const RunFacts run = read_run_facts(weights.training.config, weights.training.tokenizer);
  FoundTokenizer found = find_tokenizer(flags.tokenizer, weights.path, run);
  std::string prompt = prompt_text(flags);
  if (flags.chat) {
    prompt = as_question(prompt, flags, weights.path);
    const std::vector<std::int32_t> stops = stop_ids_of(weights.path);
    found.ends.insert(found.ends.end(), stops.begin(), stops.end());
  }
  GenerationRequest request{.prompt = prompt_tokens(prompt, found, model, flags.chat),
                            .sampling = flags.sampling,
                            .stops = flags.stops,
                            .ends = found.ends};
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  request.max_tokens = tokens_to_draw(flags, length, model);

  const GenerationPlan plan =
      plan_generation(model, {.compute = compute_dtype(flags, run, *weights.tensors),
                              .positions = length + request.max_tokens,
                              .chunk_tokens = std::min(length, kPromptChunk)});
  Backend backend = make_cpu_backend(
      flags.threads > 0 ? flags.threads : omp_num_threads(process_environment).value_or(0));
  spdlog::info("checkpoint={} model_type={} compute={} tokenizer={} device=\"{}\"",
               weights.path.string(), model.model_type, name_of(plan.sizes.compute), found.name,
               backend.device->description());
  spdlog::info("memory {}", describe_memory(plan));
  check_memory(plan, *backend.device);
  const StopSignal stop;
  LoadedModel reader(plan, *backend.ops, *backend.device, *weights.tensors);

  if (!flags.json && !flags.chat) {
    print_text(as_utf8(prompt));
  }
  std::vector<LogProbabilities> probabilities;
  const GeneratedText made = generate_text(
      reader, *found.tokenizer, request,
      {.on_text =
           [&](std::string_view text) {
             if (!flags.json) print_text(text);
           },
       .on_token =
           [&](std::int32_t token, std::span<const float> logits) {
             if (flags.logprobs) {
               probabilities.push_back(log_probabilities(logits, token, *flags.logprobs));
             }
           },
       .stop_requested = [&] { return stop.number() != 0; }});
  if (flags.json) {
    print_json(flags, prompt, request, made, probabilities, found.name);
  } else {
    print_text("\n");
  }
  spdlog::info(
      "prompt_tokens={} prompt_seconds={:.3f} tokens={} tokens_per_second={:.1f} ended_by={}",
      length, made.prompt_seconds, made.tokens.size(),
      made.steps == 0 ? 0.0 : static_cast<double>(made.steps) / made.token_seconds,
      name_of(made.reason));
  return stop.number() == 0 ? kExitSuccess : kExitSignalBase + stop.number();
}

void check_flags(const Flags& flags) {
  if (flags.chat && !flags.prompt && flags.prompt_file.empty()) {
    throw ConfigError("--chat asks the model what --prompt or --prompt-file says: expected one");
  }
  if (!(std::isfinite(flags.sampling.temperature) && flags.sampling.temperature >= 0.0)) {
    throw ConfigError(fmt::format("--temperature {}: expected 0 (the likeliest token) or more",
                                  flags.sampling.temperature));
  }
  if (!(flags.sampling.top_p > 0.0 && flags.sampling.top_p <= 1.0)) {
    throw ConfigError(fmt::format("--top-p {}: expected a probability above 0, at most 1 (all)",
                                  flags.sampling.top_p));
  }
  if (flags.sampling.top_k < 0) {
    throw ConfigError(
        fmt::format("--top-k {}: expected a number of tokens, 0 for all", flags.sampling.top_k));
  }
  if (flags.max_tokens && *flags.max_tokens < 1) {
    throw ConfigError(fmt::format("--max-tokens {}: expected at least 1", *flags.max_tokens));
  }
  if (flags.logprobs && (*flags.logprobs < 0 || !flags.json)) {
    throw ConfigError(fmt::format(
        "--logprobs {}: expected a number of tokens, 0 or more, beside --json", *flags.logprobs));
  }
  if (flags.threads < 0) {
    throw ConfigError(fmt::format("--threads {}: expected 0 (all cores) or more", flags.threads));
  }
  if (std::any_of(flags.stops.begin(), flags.stops.end(),
                  [](const auto& s) { return s.empty(); })) {
    throw ConfigError("--stop is empty, and every text begins with the empty string");
  }
}

}  // namespace

void add_generate_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app.add_subcommand("generate",
                         "Generate text from a trained model: a run, one of its checkpoints, or a "
                         "Hugging Face folder");
  command
      ->add_option("--checkpoint", flags->checkpoint,
                   "A run's output_dir or its checkpoints folder (the newest is taken), one "
                   "checkpoint, or anything else that convert-checkpoint reads, such as a "
                   "Hugging Face folder")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--base", flags->base,
                   "Where the weights are now beside which a run trained adapters, if they were "
                   "moved; default: where model.initial_weights was")
      ->type_name("PATH");
  CLI::Option* const prompt =
      command->add_option("--prompt", flags->prompt, "The text to continue")->type_name("TEXT");
  command->add_option("--prompt-file", flags->prompt_file, "A file with the text to continue")
      ->type_name("FILE")
      ->excludes(prompt);
  CLI::Option* const chat =
      command->add_flag("--chat", flags->chat,
                        "Ask the prompt as a user would, by the model's chat template, and print "
                        "the answer alone");
  command->add_option("--system", flags->system, "With --chat: the system's message")
      ->type_name("TEXT")
      ->needs(chat);
  command
      ->add_option("--chat-template", flags->chat_template,
                   "With --chat: a .jinja file, or a folder with a template; default: the one "
                   "beside the weights")
      ->type_name("FILE|FOLDER")
      ->needs(chat);
  command->add_option("--max-tokens", flags->max_tokens,
                      fmt::format("Tokens to draw; default: {}, or as many as the model has "
                                  "positions for",
                                  kDefaultTokens));
  command->add_option("--temperature", flags->sampling.temperature,
                      "Divide the logits by this; 0: always take the likeliest token; default: 1");
  command->add_option("--top-k", flags->sampling.top_k,
                      "Draw among the N likeliest tokens; default: 0, which means all");
  command->add_option("--top-p", flags->sampling.top_p,
                      "Draw among the likeliest tokens that together have this probability; "
                      "default: 1");
  command->add_option("--seed", flags->sampling.seed,
                      "Seed of the random numbers: the same seed gives the same text; default: "
                      "1234");
  command
      ->add_option("--stop", flags->stops,
                   "Stop before this text; repeatable: before whichever comes first")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--tokenizer", flags->tokenizer,
          "bytes, or the file of a tokenizer (tokenizer.json, a SentencePiece model, a rank "
          "file of tiktoken); default: the tokenizer of the "
          "run's data, or the one beside the weights")
      ->type_name("bytes|FILE");
  command->add_option("--dtype", flags->dtype, "Precision to compute in; default: the run's")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--threads", flags->threads,
                      "Number of threads; default: OMP_NUM_THREADS, or one for each core that "
                      "this process may use");
  command->add_option("--logprobs", flags->logprobs,
                      "With --json: the logarithm of each token's probability, and those of the N "
                      "likeliest in its place");
  command->add_flag("--json", flags->json,
                    "Print one JSON object at the end: text, tokens, the reason for the end, "
                    "seconds");
  command->footer(
      "Examples:\n"
      "  dstrain generate --checkpoint runs/quickstart --prompt '#include <'\n"
      "  dstrain generate --checkpoint runs/quickstart/checkpoints/step-00000650 \\\n"
      "    --prompt-file start.txt --max-tokens 300 --top-p 0.9 --seed 7\n"
      "  dstrain generate --checkpoint ~/models/TinyLlama --temperature 0 --stop '.' \\\n"
      "    --prompt 'The capital of France is' --json\n"
      "  dstrain generate --checkpoint runs/sft --chat \\\n"
      "    --prompt 'What is the capital of France?'\n"
      "Exit codes: 0 success, 2 usage, 3 does not fit into memory, 5 checkpoint\n"
      "unusable, 130 interrupted.");
  command->callback([flags, &chosen] {
    chosen = [flags] {
      check_flags(*flags);
      return generate(*flags);
    };
  });
}

}  // namespace dstrain
