// dstrain prepare-data: its flags, what it shows while it works, and what it says at the end. The
// work itself is engine/data/prepare_data.h.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/byte_progress.h"
#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/inspect/inspect_data.h"
#include "cmd/logging.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"
#include "engine/data/input/known_formats.h"
#include "engine/data/prepare_data.h"

namespace dstrain {
namespace {

using Phase = PrepareProgress::Phase;
void show(ByteProgress& display, const PrepareProgress& progress) {
  switch (progress.phase) {
    case Phase::kFinding:
      return display.show_phase("looking for files");
    case Phase::kTraining:
      return display.show_phase("making a SentencePiece model", ByteProgress::Announce::kYes);
    case Phase::kCounting:
      return display.show_bytes(progress.bytes_done, progress.bytes_total, 0,
                                "learning a tokenizer");
    case Phase::kMerging:
      return display.show_phase(fmt::format("learning a tokenizer: {} of {} tokens",
                                            grouped(progress.tokens_done),
                                            grouped(progress.tokens_total)));
    case Phase::kChecking:
      return display.show_phase("checking what an interrupted run left");
    case Phase::kFinishing:
      return display.show_phase("flushing the files to disk");
    case Phase::kEncoding:
      return display.show_bytes(progress.bytes_done, progress.bytes_total, progress.bytes_before);
  }
}

void print_split(const char* name, const PreparedSplit& split) {
  fmt::print("  {:<11} {:>9} documents {:>16} tokens {:>10}   {}.bin, .idx\n", name,
             grouped(split.documents), grouped(split.tokens), as_size(split.bin_bytes),
             split.prefix);
}

/// The first of `named`, out of `count`.
void print_some(const char* what, const std::vector<std::string>& named, std::int64_t count) {
  constexpr std::size_t kShown = 10;
  const std::size_t shown = std::min(named.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    fmt::print("  {}: {}\n", what, named[i]);
  }
  if (const std::int64_t more = count - static_cast<std::int64_t>(shown); more > 0) {
    fmt::print("  {}: {} more, {} in dataset.json\n", what, grouped(more),
               std::ssize(named) == count ? "all" : fmt::format("the first {}", named.size()));
  }
}

/// Prints the counts of fine-tuning data, and each of the notes that is not zero.
void print_samples(const PrepareSummary::Samples& samples) {
  if (samples.kind.empty()) {
    return;
  }
  const SampleNotes& notes = samples.notes;
  fmt::print("  {} {}{}: {} answers, {} trained tokens\n", grouped(samples.lines), samples.kind,
             samples.chat_template.empty() ? "" : fmt::format(" by {}", samples.chat_template),
             grouped(notes.answers), grouped(samples.trained_tokens));
  if (notes.split_apart > 0) {
    fmt::print(
        "  {} conversations became several samples: the template shows earlier answers to the "
        "model otherwise than it gave them\n",
        grouped(notes.split_apart));
  }
  if (notes.across_border > 0) {
    fmt::print(
        "  {} answers whose first token begins in the prompt, which the model sees cut otherwise "
        "when it is asked\n",
        grouped(notes.across_border));
  }
  if (notes.without_stop > 0) {
    fmt::print("  {} answers without a token that ends them\n", grouped(notes.without_stop));
  }
  if (notes.unasked > 0) {
    fmt::print("  {} turns of the assistant before any question: context, not trained\n",
               grouped(notes.unasked));
  }
}

void print_summary(const PrepareSummary& summary) {
  const std::int64_t text_bytes =
      summary.train.text_bytes + (summary.validation ? summary.validation->text_bytes : 0);
  fmt::print("{} file{}, {} of text in {:.1f} s ({}/s); tokenizer {}: vocabulary {}, ids as {}\n",
             grouped(summary.files_found), summary.files_found == 1 ? "" : "s", as_size(text_bytes),
             summary.seconds,
             as_size(static_cast<std::int64_t>(static_cast<double>(text_bytes) /
                                               std::max(summary.seconds, 1e-3))),
             summary.tokenizer, summary.vocab_size, summary.token_type);
  print_samples(summary.samples);
  print_split("train", summary.train);
  if (summary.validation) {
    print_split("validation", *summary.validation);
  } else {
    fmt::print(
        "  no validation: nothing fits into that share; name files with --validation-input\n");
  }
  const std::pair<std::int64_t, const char*> skipped[] = {
      {summary.duplicates, "duplicates"},
      {summary.binary, "binary (hold NUL bytes)"},
      {summary.empty, "empty"},
      {summary.hidden, "hidden (names begin with a dot)"},
      {summary.special, "special (pipes, sockets, devices)"},
      {summary.excluded, "left out (--exclude)"},
      {summary.bad_lines,
       summary.bad_lines == 1 ? "bad line of JSON lines" : "bad lines of JSON lines"},
      {summary.folder_links, "links to folders (name their targets with --input)"}};
  for (const auto& [count, what] : skipped) {
    if (count > 0) {
      fmt::print("  skipped {:>9} {}\n", grouped(count), what);
    }
  }
  print_some("unreadable", summary.unreadable, std::ssize(summary.unreadable));
  print_some("bad line", summary.bad_lines_named, summary.bad_lines);
}

struct Flags {
  PrepareOptions options;
  std::string train_tokenizer;
  BpeTraining bpe;
  std::vector<std::string> extensions;
  InspectRequest inspect;
  bool json = false;
};

int inspect(Flags flags) {
  set_up_logging("[prepare-data] ");
  if (flags.inspect.dataset.empty() && flags.inspect.config.empty()) {
    throw ConfigError(
        "--inspect: no data set is named; expected a folder that prepare-data made, or the prefix "
        "of token files: --inspect 3 data/mine; or the config of a run: --config RUN.json");
  }
  flags.inspect.seed = flags.options.seed;
  flags.inspect.json = flags.json;
  flags.inspect.colours = isatty(STDOUT_FILENO) == 1;
  fmt::print("{}", inspect_data(flags.inspect));
  return kExitSuccess;
}

int run(Flags flags) {
  if (flags.inspect.samples > 0) {
    return inspect(std::move(flags));
  }
  if (!flags.inspect.dataset.empty()) {
    throw ConfigError(
        fmt::format("{}: expected only after --inspect N; name text to read "
                    "with --input",
                    flags.inspect.dataset));
  }
  for (const auto& [flag, is_missing] : {std::pair("--input", flags.options.input.empty()),
                                         std::pair("--output", flags.options.output.empty())}) {
    if (is_missing) {
      throw ConfigError(fmt::format("prepare-data: {} is required", flag));
    }
  }
  if (!flags.train_tokenizer.empty()) {
    if (flags.bpe.vocab_size == 0) {
      throw ConfigError(
          "--train-tokenizer needs the number of tokens to learn; expected --vocab-size N");
    }
    flags.options.train_bpe = flags.bpe;
  }
  for (std::string& extension : flags.extensions) {
    if (extension.empty() || (extension == "all" && flags.extensions.size() > 1)) {
      throw ConfigError("--extensions: expected all, or a list such as .h,.hpp,.md");
    }
    if (extension != "all") {
      flags.options.extensions.push_back(extension.front() == '.' ? extension
                                                                  : fmt::format(".{}", extension));
    }
  }
  for (std::string& extension : flags.options.as_text) {
    extension = extension_of("." + extension);
    const KnownFormat* format = format_of_name("." + extension);
    if (format == nullptr || format->content != KnownFormat::Content::kJson) {
      throw ConfigError(fmt::format(
          "--as-text {}: expected extensions of JSON: json, jsonl, ndjson, ipynb; files "
          "that are compressed or binary cannot be read as they are, and other files are text "
          "anyway",
          extension));
    }
  }
  set_up_logging("[prepare-data] ");
  const StopSignal stop;
  ByteProgress display;
  std::optional<PrepareSummary> summary;
  try {
    summary = prepare_data(
        flags.options,
        {.on_progress = [&](const PrepareProgress& progress) { show(display, progress); },
         .stop_requested = [&] { return stop.number() != 0; }});
  } catch (const DiskError& error) {
    display.clear();
    throw StorageError(
        has_unfinished(flags.options.output)
            ? fmt::format("{}; the same command resumes from what is there", error.what())
            : error.what());
  }
  display.clear();
  if (!summary) {
    spdlog::warn("interrupted; {} {}",
                 has_unfinished(flags.options.output) ? "the same command resumes from what is in"
                                                      : "nothing was written to",
                 flags.options.output);
    return kExitSignalBase + stop.number();
  }
  if (flags.json) {
    fmt::print("{}\n", to_json(*summary));
  } else {
    print_summary(*summary);
  }
  return kExitSuccess;
}

}  // namespace

void add_prepare_data_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<Flags>();
  PrepareOptions& options = flags->options;
  CLI::App* const command = app.add_subcommand(
      "prepare-data",
      "Turn text and JSON lines into token files: OUTPUT/train and, split by whole documents, "
      "OUTPUT/validation (.bin and .idx)");
  command->add_option("--input", options.input, "Files, and folders with everything below them")
      ->type_name("PATH")
      ->expected(1, CLI::detail::expected_max_vector_size);
  command->add_option("--output", options.output, "Folder for train.bin, train.idx, …")
      ->type_name("PREFIX");
  auto* const tokenizer = command
                              ->add_option("--tokenizer", options.tokenizer,
                                           "bytes, or the file or folder of a tokenizer: "
                                           "tokenizer.json, vocab.json and merges.txt, a "
                                           "SentencePiece model, a rank file of tiktoken")
                              ->capture_default_str()
                              ->type_name("bytes|FILE|FOLDER");
  auto* const sentencepiece =
      command
          ->add_option("--train-sentencepiece", options.train_sentencepiece,
                       "First train a SentencePiece model of N pieces on up to 16 MiB of the text, "
                       "as PREFIX/tokenizer.model, and use it")
          ->type_name("N")
          ->excludes(tokenizer);
  auto* const train =
      command
          ->add_option("--train-tokenizer", flags->train_tokenizer,
                       "First learn a byte-level BPE tokenizer of --vocab-size tokens from the "
                       "text for training, as PREFIX/tokenizer.json, and use it")
          ->check(CLI::IsMember({"bpe"}))
          ->excludes(tokenizer)
          ->excludes(sentencepiece);
  command
      ->add_option("--vocab-size", flags->bpe.vocab_size,
                   "Number of tokens to learn, including the 256 bytes and the end token")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->needs(train);
  command
      ->add_option("--split-pattern", flags->bpe.split,
                   "Pattern that cuts text into the pieces that no token crosses: gpt2, gpt4 "
                   "(LLaMA 3's), gpt4o, qwen2, or a regular expression that matches a piece")
      ->capture_default_str()
      ->type_name("gpt2|gpt4|gpt4o|qwen2|REGEX")
      ->needs(train);
  command
      ->add_option("--end-token", flags->bpe.document_end,
                   "Token that ends a document, which is appended to each unless --append-eod "
                   "names another; '': none")
      ->capture_default_str()
      ->type_name("TEXT")
      ->needs(train);
  command->add_option("--append-eod", options.append_eod, "Append this token id to each document")
      ->type_name("ID");
  auto* const validation =
      command
          ->add_option(
              "--validation", options.validation,
              "Share to keep for validation, chosen at random: of the bytes in whole files "
              "of text, of the documents of JSON lines; 0: none")
          ->capture_default_str()
          ->type_name("FRACTION");
  command
      ->add_option("--validation-input", options.validation_input,
                   "Files for validation; all of --input is then used for training")
      ->type_name("PATH")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->excludes(validation);
  auto* const seed = command
                         ->add_option("--seed", options.seed,
                                      "Seed of the random numbers that choose validation files")
                         ->capture_default_str();
  command
      ->add_option("--extensions", flags->extensions,
                   "Read only files whose names end in one of these, for example .h,.hpp; "
                   "default: all")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--exclude", options.exclude,
                   "Leave out files and folders with these names, for example "
                   "'*.gz,third_party'; a pattern with a slash is matched against the path "
                   "below the input folder, for example 'docs/*.html'")
      ->delimiter(',')
      ->type_name("PATTERN");
  command
      ->add_option("--as-text", options.as_text,
                   "Read JSON files as plain text, one document per file: json, jsonl, ndjson, "
                   "ipynb")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--field", options.field,
                   "Field of JSON lines that holds the text, with dots for nested fields: "
                   "data.text; default: text")
      ->type_name("NAME");
  auto* const chat = command->add_flag(
      "--chat", options.chat,
      "JSON lines are for fine-tuning: \"messages\", ShareGPT's \"conversations\", \"prompt\" with "
      "\"completion\", \"chosen\" with \"rejected\", Alpaca's \"instruction\" with \"output\", or "
      "\"text\"; answers are trained, the rest is context");
  command
      ->add_option("--chat-template", options.chat_template,
                   "Template that writes conversations: a .jinja file, or a model's folder; "
                   "default: the tokenizer's folder")
      ->type_name("FILE|FOLDER")
      ->needs(chat);
  command
      ->add_option("--train-on", options.samples.train_on,
                   "What of a conversation is trained: all turns of the assistant, its last turn, "
                   "or every token")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, TrainOn>{{"assistant", TrainOn::kAssistant},
                                                                 {"last_turn", TrainOn::kLastTurn},
                                                                 {"all", TrainOn::kAll}},
                                  CLI::ignore_case))
      ->default_str("assistant")
      ->type_name("assistant|last_turn|all")
      ->needs(chat);
  command
      ->add_option("--answers-begin", options.samples.answers_begin,
                   "Where an answer begins: behind the prompt that asks the model for it, or "
                   "behind the question, with what the template writes in front of answers")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, AnswersBegin>{{"prompt", AnswersBegin::kPrompt},
                                              {"question", AnswersBegin::kQuestion}},
          CLI::ignore_case))
      ->default_str("prompt")
      ->type_name("prompt|question")
      ->needs(chat);
  command
      ->add_option("--stop-token", options.stop_tokens,
                   "Token that ends an answer, besides those that the model's folder names")
      ->type_name("TEXT")
      ->needs(chat);
  command
      ->add_option("--on-bad-line", options.on_bad_line,
                   "What to do about a JSON line without such a text, or with one that the "
                   "tokenizer refuses: stop, or skip and count it")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, PrepareOptions::OnBadLine>{
              {"stop", PrepareOptions::OnBadLine::kStop},
              {"skip", PrepareOptions::OnBadLine::kSkip}},
          CLI::ignore_case))
      ->default_str("stop")
      ->type_name("stop|skip");
  command
      ->add_option("--longest-line", options.longest_line,
                   "Largest JSON line in bytes; a longer one is a bad line. Memory use grows to "
                   "several times the longest line")
      ->capture_default_str()
      ->type_name("BYTES")
      ->check(CLI::PositiveNumber);
  command->add_flag(
      "--deduplicate,!--no-deduplicate", options.deduplicate,
      "Skip documents equal to an earlier one (on unless --no-deduplicate), which takes "
      "some tens of bytes of memory for each document");
  command
      ->add_option("--threads", options.threads,
                   "Threads that parse and encode; 0: one for each core")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command->add_flag("--overwrite", options.overwrite, "Replace an earlier output");
  command->add_flag("--json", flags->json, "Print the summary, or the samples, as JSON");
  auto* const inspect =
      command
          ->add_option("--inspect", flags->inspect.samples,
                       "Write nothing; print the first N samples that a run with this --seed draws "
                       "from DATASET, as its model sees them: ids, text and document ends")
          ->type_name("N")
          ->check(CLI::PositiveNumber);
  auto* const sequence =
      command
          ->add_option("--sequence-length", flags->inspect.sequence,
                       "Tokens of a sample to inspect: the run's data.sequence_length")
          ->capture_default_str()
          ->type_name("N")
          ->check(CLI::PositiveNumber)
          ->needs(inspect);
  auto* const pack =
      command
          ->add_flag(
              "--pack", flags->inspect.packed,
              "Inspect samples of a run with data.pack \"best_fit\": documents packed so that "
              "only those longer than a sample are cut")
          ->needs(inspect);
  command
      ->add_option("--config", flags->inspect.config,
                   "Inspect the samples of the run with this config: its sequences, packing, "
                   "positions and masked targets, from DATASET or, without one, its data.train")
      ->type_name("FILE")
      ->needs(inspect)
      ->excludes(sequence)
      ->excludes(pack)
      ->excludes(seed);
  command
      ->add_option("DATASET", flags->inspect.dataset,
                   "What to inspect: a folder that prepare-data made, or the prefix of token files")
      ->type_name("DATASET");
  command->footer(
      "A text file is one document; in JSON lines, every line is one (*.jsonl, and other files "
      "whose first line is an object with the field). Both may be compressed with gzip, zstd or "
      "xz. "
      "Files with NUL bytes are not text and are skipped, and so are hidden files. Archives, "
      "Parquet, "
      "PDF and the like are refused. After an interruption the same command resumes: until it "
      "is done, OUTPUT holds what that needs.\nExamples:\n"
      "  dstrain prepare-data --input /usr/include --output data/headers\n"
      "  dstrain prepare-data --input dolma --field text --output data/dolma \\\n"
      "    --tokenizer tokenizer.model --append-eod 2\n"
      "  dstrain prepare-data --input src docs --output data/code \\\n"
      "    --extensions .cpp,.h,.md --train-sentencepiece 8000\n"
      "  dstrain prepare-data --input books --output data/books --train-tokenizer bpe \\\n"
      "    --vocab-size 32000\n"
      "  dstrain prepare-data --input src --output data/code --exclude '*.gz,vendor' \\\n"
      "    --as-text json\n"
      "  dstrain prepare-data --input train.txt --validation-input valid.txt \\\n"
      "    --output data/stories --tokenizer models/Qwen3-0.6B --append-eod 151643\n"
      "  dstrain prepare-data --input chats.jsonl --chat --tokenizer models/Qwen3-0.6B \\\n"
      "    --output data/chats\n"
      "  dstrain prepare-data --inspect 3 data/stories --sequence-length 64\n"
      "  dstrain prepare-data --inspect 3 --config configs/stories.json");
  command->callback([flags, &chosen] { chosen = [flags] { return run(*flags); }; });
}

}  // namespace dstrain
