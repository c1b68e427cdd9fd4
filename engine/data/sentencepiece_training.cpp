#include "engine/data/sentencepiece_training.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include "engine/config/config_error.h"
#include "engine/data/text_sample.h"

namespace dstrain {
namespace {

constexpr std::size_t kLongestSentence = 4096;  // the trainer drops longer ones

/// The lines of a sample.
class SampledLines final : public sentencepiece::SentenceIterator {
 public:
  explicit SampledLines(TextSample sample) : sample_(std::move(sample)) { Next(); }

  [[nodiscard]] bool done() const override { return !sentence_.has_value(); }
  [[nodiscard]] const std::string& value() const override { return *sentence_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (next_line_ >= block_.size()) {
      next_line_ = 0;
      if (!sample_.next(block_)) {
        sentence_.reset();
        return;
      }
    }
    const std::size_t line_end = std::min(block_.find('\n', next_line_), block_.size());
    std::size_t length = std::min(line_end - next_line_, kLongestSentence);
    // A long line continues as a sentence of its own; it is never cut inside a character.
    while (next_line_ + length < line_end && length > 1 &&
           (static_cast<unsigned char>(block_[next_line_ + length]) & 0xC0U) == 0x80U) {
      --length;
    }
    sentence_ = block_.substr(next_line_, length);
    next_line_ += length;
    if (next_line_ == line_end) {
      ++next_line_;
    }
  }

 private:
  TextSample sample_;
  std::string block_;
  std::size_t next_line_ = 0;
  std::optional<std::string> sentence_;
};

/// The library's message without the source line and condition that it puts in front.
std::string plain_words(const std::string& message) {
  const std::size_t condition_end = message.rfind("] ");
  return condition_end == std::string::npos ? message : message.substr(condition_end + 2);
}

}  // namespace

std::string train_sentencepiece(const std::vector<const InputFile*>& files,
                                const SentencePieceTraining& training,
                                const std::function<bool()>& stop_requested) {
  // byte_fallback takes 256 pieces, <unk>, <s> and </s> three.
  constexpr std::int64_t kReserved = 259;
  if (training.vocab_size <= kReserved) {
    throw ConfigError(
        fmt::format("--train-sentencepiece {}: the 256 bytes and 3 control pieces are always in "
                    "the vocabulary; expected more than {} (with bytes only: --tokenizer bytes)",
                    training.vocab_size, kReserved));
  }
  SampledLines lines(TextSample(files,
                                {.bytes = training.sample_bytes,
                                 .seed = training.seed,
                                 .field = training.field,
                                 .longest_line = training.longest_line},
                                stop_requested));
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(training.vocab_size)},
      {"character_coverage", "0.9999"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", std::to_string(2 * kLongestSentence)},
      {"num_threads", std::to_string(training.threads)},
      {"minloglevel", "3"},
  };
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok()) {
    throw ConfigError(
        fmt::format("--train-sentencepiece {}: SentencePiece cannot make this vocabulary of the "
                    "text: {}",
                    training.vocab_size, plain_words(status.error_message())));
  }
  return model;
}

}  // namespace dstrain
