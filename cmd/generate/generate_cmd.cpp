// The command line of dstrain generate.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/generate/generate.h"
#include "cmd/logging.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

void check_flags(const GenerateFlags& flags) {
  if (flags.chat && !flags.prompt && flags.prompt_file.empty() && flags.prompts.empty()) {
    throw ConfigError(
        "--chat asks the model what --prompt, --prompt-file or --prompts says: expected one");
  }
  if (flags.samples < 1) {
    throw ConfigError(fmt::format("--samples {}: expected at least 1", flags.samples));
  }
  if (flags.batch_size && *flags.batch_size < 1) {
    throw ConfigError(fmt::format("--batch-size {}: expected at least 1", *flags.batch_size));
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
  auto flags = std::make_shared<GenerateFlags>();
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
  CLI::Option* const prompts =
      command
          ->add_option("--prompts", flags->prompts,
                       "JSON lines, each with a \"prompt\", a text or messages, or with "
                       "\"messages\". Prints each line again with the \"completion\" that the "
                       "model gives, as fine-tuning takes it")
          ->type_name("FILE")
          ->excludes("--prompt")
          ->excludes("--prompt-file");
  command
      ->add_option("--samples", flags->samples,
                   "With --prompts: completions of each prompt; default: 1")
      ->needs(prompts);
  command
      ->add_option("--batch-size", flags->batch_size,
                   fmt::format("With --prompts: texts that the model reads side by side; default: "
                               "{}, or as many as there is memory for",
                               kDefaultTexts))
      ->needs(prompts);
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
  command
      ->add_flag("--json", flags->json,
                 "Print one JSON object at the end: text, tokens, the reason for the end, "
                 "seconds")
      ->excludes(prompts);
  command->footer(
      "Examples:\n"
      "  dstrain generate --checkpoint runs/quickstart --prompt '#include <'\n"
      "  dstrain generate --checkpoint runs/quickstart/checkpoints/step-00000650 \\\n"
      "    --prompt-file start.txt --max-tokens 300 --top-p 0.9 --seed 7\n"
      "  dstrain generate --checkpoint ~/models/TinyLlama --temperature 0 --stop '.' \\\n"
      "    --prompt 'The capital of France is' --json\n"
      "  dstrain generate --checkpoint runs/sft --chat \\\n"
      "    --prompt 'What is the capital of France?'\n"
      "  dstrain generate --checkpoint runs/sft --prompts questions.jsonl > answers.jsonl\n"
      "Exit codes: 0 success, 2 usage, 3 does not fit into memory, 5 checkpoint\n"
      "unusable, 130 interrupted.");
  command->callback([flags, &chosen] {
    chosen = [flags] {
      check_flags(*flags);
      set_up_logging("[generate] ");
      return flags->prompts.empty() ? generate_one(*flags) : generate_many(*flags);
    };
  });
}

}  // namespace dstrain
