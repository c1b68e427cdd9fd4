#include "engine/data/bpe_training.h"

#include <chrono>
#include <iterator>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/usable_cores.h"
#include "engine/config/config_error.h"
#include "engine/data/document_taker.h"
#include "engine/data/encoding_pipeline.h"
#include "engine/tokenizer/byte_level_json.h"
#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/train_bpe.h"

namespace dstrain {
namespace {

/// The steps in which the tokenizer will cut a text, read from the file that it will have.
std::unique_ptr<PreTokenizer> pre_tokenizer_of(const BpeTraining& training) {
  const auto document =
      nlohmann::json::parse(to_tokenizer_json({.split = split_expression(training.split)}));
  return PreTokenizer::make(JsonPart(document, "--split-pattern")["pre_tokenizer"]);
}

/// One reading of all files, until it is stopped or the counter is full.
void read_all(const std::vector<InputFile>& files,
              const PrepareOptions& options,
              const PrepareHooks& hooks,
              PieceCounter& counter) {
  PrepareProgress progress{.phase = PrepareProgress::Phase::kCounting};
  for (const InputFile& file : files) {
    progress.bytes_total += file.bytes;
  }
  EncodingPipeline pipeline(
      files, counter,
      {.field = JsonField(options.field.value_or("text")),
       .longest_line = options.longest_line,
       .threads = options.threads > 0 ? options.threads : num_usable_cores()});
  std::int64_t bytes_in_front = 0;
  std::int64_t lines = 0;
  const auto stops = [&] { return hooks.stop_requested() || counter.is_full(); };
  while (const EncodedBlock* const block = pipeline.next(stops)) {
    const InputBlock& input = block->input;
    const InputFile& file = files[input.file];
    if (options.on_bad_line == PrepareOptions::OnBadLine::kStop) {
      if (const std::string why = bad_line_in(*block, file.path, lines); !why.empty()) {
        throw ConfigError("--input: " + why);
      }
    }
    lines = input.ends_file ? 0 : lines + block->num_lines;
    bytes_in_front += input.ends_file ? file.bytes : 0;
    progress.bytes_done = bytes_in_front + (input.ends_file ? 0 : input.file_offset);
    hooks.on_progress(progress);
  }
}

/// Returns whether all of the counter's share is counted.
bool count(const std::vector<InputFile>& files,
           const PrepareOptions& options,
           const PrepareHooks& hooks,
           PieceCounter& counter) {
  read_all(files, options, hooks, counter);
  counter.finish();
  return !hooks.stop_requested() && !counter.is_full();
}

ByteLevelBpe merge(BpeTrainer& trainer, const BpeTraining& training, const PrepareHooks& hooks) {
  PrepareProgress progress{.phase = PrepareProgress::Phase::kMerging,
                           .tokens_total = training.vocab_size};
  ByteLevelBpe made = trainer.train(training.vocab_size, [&](std::int64_t tokens) {
    progress.tokens_done = tokens;
    hooks.on_progress(progress);
    return !hooks.stop_requested();
  });
  made.split = split_expression(training.split);
  if (std::ssize(made.vocabulary) < training.vocab_size && !hooks.stop_requested()) {
    spdlog::warn(
        "--vocab-size {}: the vocabulary has {} tokens, since no other pair of tokens occurs {} "
        "times in the text",
        training.vocab_size, made.vocabulary.size(), BpeTrainer::kLeastCount);
  }
  return made;
}

}  // namespace

std::optional<std::string> train_bpe(const std::vector<InputFile>& files,
                                     const PrepareOptions& options,
                                     const PrepareHooks& hooks,
                                     PieceCounter::Limits limits) {
  const BpeTraining& training = *options.train_bpe;
  const auto began = std::chrono::steady_clock::now();
  const std::unique_ptr<PreTokenizer> pre_tokenizer = pre_tokenizer_of(training);
  auto counter = std::make_unique<PieceCounter>(*pre_tokenizer, 0, limits);
  for (int halvings = 1; !count(files, options, hooks, *counter); ++halvings) {
    if (hooks.stop_requested()) {
      return std::nullopt;
    }
    spdlog::warn(
        "--train-tokenizer: the text has more distinct pieces than are held at once ({} of {} "
        "together), so the tokenizer is learned from 1/{} of it: documents, and parts of 1 MiB of "
        "long ones, chosen at random",
        grouped(limits.pieces), size_text(limits.bytes), std::int64_t{1} << halvings);
    counter = std::make_unique<PieceCounter>(*pre_tokenizer, halvings, limits);
  }
  if (counter->num_pieces() == 0) {
    throw ConfigError(fmt::format("--train-tokenizer: there is no text to learn from in {}",
                                  counted(std::ssize(files), "file")));
  }
  BpeTrainer trainer(training.specials());
  trainer.reserve(static_cast<std::size_t>(counter->num_pieces()),
                  static_cast<std::size_t>(counter->num_bytes()));
  counter->for_each(
      [&](std::string_view piece, std::int64_t occurrences) { trainer.add(piece, occurrences); });
  const std::int64_t pieces = counter->num_pieces();
  counter.reset();
  const ByteLevelBpe made = merge(trainer, training, hooks);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  spdlog::info("learned a tokenizer of {} tokens from {} distinct pieces of text in {:.2f} s",
               grouped(std::ssize(made.vocabulary)), grouped(pieces), seconds.count());
  return hooks.stop_requested() ? std::nullopt : std::optional(to_tokenizer_json(made));
}

std::string bpe_tokenizer_config(const BpeTraining& training) {
  nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"clean_up_tokenization_spaces", false}};
  if (!training.document_end.empty()) {
    config["bos_token"] = config["eos_token"] = training.document_end;
  }
  return config.dump(2) + "\n";
}

}  // namespace dstrain
