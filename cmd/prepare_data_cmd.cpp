// dstrain prepare-data: its flags, what it shows while it works, and what it says at the end. The
// work itself is engine/data/prepare_data.h.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/byte_progress.h"
#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"
#include "engine/data/known_formats.h"
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
    case Phase::kFinishing:
      return display.show_phase("bringing the files to the disk");
    case Phase::kEncoding:
      return display.show_bytes(progress.bytes_done, progress.bytes_total);
  }
}

void print_split(const char* name, const PreparedSplit& split) {
  fmt::print("  {:<11} {:>9} documents {:>16} tokens {:>10}   {}.bin, .idx\n", name,
             grouped(split.documents), grouped(split.tokens), as_size(split.bin_bytes),
             split.prefix);
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
  print_split("train", summary.train);
  if (summary.validation) {
    print_split("validation", *summary.validation);
  } else {
    fmt::print(
        "  no validation: no file fits into that share; name files with --validation-input\n");
  }
  const std::pair<std::int64_t, const char*> skipped[] = {
      {summary.duplicates, "duplicates"},
      {summary.binary, "binary (hold NUL bytes)"},
      {summary.empty, "empty"},
      {summary.hidden, "hidden (names begin with a dot)"},
      {summary.special, "special (pipes, sockets, devices)"},
      {summary.excluded, "left out (--exclude)"},
      {summary.folder_links, "links to folders (name their targets with --input)"}};
  for (const auto& [count, what] : skipped) {
    if (count > 0) {
      fmt::print("  skipped {:>9} {}\n", grouped(count), what);
    }
  }
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(summary.unreadable.size(), kShown); ++i) {
    fmt::print("  unreadable: {}\n", summary.unreadable[i]);
  }
  if (summary.unreadable.size() > kShown) {
    fmt::print("  unreadable: {} more, all in dataset.json\n", summary.unreadable.size() - kShown);
  }
}

struct Flags {
  PrepareOptions options;
  std::vector<std::string> extensions;
  bool json = false;
};

int run(Flags flags) {
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
      throw ConfigError(
          fmt::format("--as-text {}: expected extensions of JSON: json, jsonl, ndjson, ipynb; what "
                      "is compressed or binary cannot be taken as it is, and other files are text "
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
    throw StorageError(error.what());
  }
  display.clear();
  if (!summary) {
    spdlog::warn("interrupted; nothing was written to {}", flags.options.output);
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
      "Turn text files into token files: OUTPUT/train and, split by whole files, "
      "OUTPUT/validation (.bin and .idx)");
  command->add_option("--input", options.input, "Files, and folders with everything below them")
      ->required()
      ->type_name("PATH")
      ->expected(1, CLI::detail::expected_max_vector_size);
  command->add_option("--output", options.output, "Folder for train.bin, train.idx, …")
      ->required()
      ->type_name("PREFIX");
  auto* const tokenizer = command->add_option("--tokenizer", options.tokenizer, "Tokenizer to use")
                              ->capture_default_str()
                              ->type_name("bytes|sentencepiece:FILE");
  command
      ->add_option("--train-sentencepiece", options.train_sentencepiece,
                   "First train a SentencePiece model of N pieces on up to 16 MiB of the text, "
                   "as PREFIX/tokenizer.model, and use it")
      ->type_name("N")
      ->excludes(tokenizer);
  command->add_option("--append-eod", options.append_eod, "Append this token id to each document")
      ->type_name("ID");
  auto* const validation =
      command
          ->add_option("--validation", options.validation,
                       "Share of the bytes to keep for validation, in whole files chosen at "
                       "random; 0: none")
          ->capture_default_str()
          ->type_name("FRACTION");
  command
      ->add_option("--validation-input", options.validation_input,
                   "Files for validation; all of --input is then used for training")
      ->type_name("PATH")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->excludes(validation);
  command
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
                   "Train on JSON as it is written: json, jsonl, ndjson, ipynb")
      ->delimiter(',')
      ->type_name("LIST");
  command->add_flag("--deduplicate,!--no-deduplicate", options.deduplicate,
                    "Skip files equal to an earlier one (on unless --no-deduplicate)");
  command
      ->add_option("--threads", options.threads, "Threads for SentencePiece; 0: one for each core")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command->add_flag("--overwrite", options.overwrite, "Replace an earlier output");
  command->add_flag("--json", flags->json, "Print the summary as JSON");
  command->footer(
      "Files that hold NUL bytes are not text and are skipped, and so are hidden ones. JSON, "
      "archives, compressed files, Parquet, PDF and the like are refused: what they hold is not "
      "read yet. Every file is one document.\nExamples:\n"
      "  dstrain prepare-data --input /usr/include --output data/headers\n"
      "  dstrain prepare-data --input src docs --output data/code \\\n"
      "    --extensions .cpp,.h,.md --train-sentencepiece 8000\n"
      "  dstrain prepare-data --input src --output data/code --exclude '*.gz,vendor' \\\n"
      "    --as-text json\n"
      "  dstrain prepare-data --input train.txt --validation-input valid.txt \\\n"
      "    --output data/stories --tokenizer sentencepiece:tokenizer.model \\\n"
      "    --append-eod 2");
  command->callback([flags, &chosen] { chosen = [flags] { return run(*flags); }; });
}

}  // namespace dstrain
