#include "engine/data/sentencepiece_training.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_trainer.h>
#include <xxhash.h>

#include "engine/config/config_error.h"
#include "engine/data/text_reader.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{64} << 10;
constexpr std::size_t kLongestSentence = 4096;  // the trainer drops longer ones

/// The lines of a sample: all text is cut into blocks of 64 KiB, and a block is in the sample if
/// its hash says so. A file of 100 GB is sampled all over, and only the sample is read.
class SampledLines final : public sentencepiece::SentenceIterator {
 public:
  SampledLines(const std::vector<const InputFile*>& files,
               const SentencePieceTraining& training,
               const std::function<bool()>& stop_requested)
      : files_(files), training_(training), stop_requested_(stop_requested) {
    std::int64_t total = 0;
    for (const InputFile* file : files) {
      total += file->bytes;
    }
    const double share = static_cast<double>(training.sample_bytes) /
                         static_cast<double>(std::max<std::int64_t>(total, 1));
    threshold_ = share >= 1.0 ? std::numeric_limits<std::uint64_t>::max()
                              : static_cast<std::uint64_t>(share * 18446744073709549568.0);
    Next();
  }

  [[nodiscard]] bool done() const override { return !sentence_.has_value(); }
  [[nodiscard]] const std::string& value() const override { return *sentence_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (next_line_ >= block_.size()) {
      if (stop_requested_() || !read_next_block()) {
        sentence_.reset();
        return;
      }
    }
    const std::size_t line_end = std::min(block_.find('\n', next_line_), block_.size());
    std::size_t length = std::min(line_end - next_line_, kLongestSentence);
    // A long line goes on as a sentence of its own; never cut inside a character.
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
  /// The next block of the sample, from its first whole line on; false behind the last file.
  bool read_next_block() {
    for (; next_file_ < files_.size(); ++next_file_, next_block_ = 0) {
      const InputFile& file = *files_[next_file_];
      while (next_block_ * kBlockBytes < file.bytes) {
        const std::int64_t block = next_block_++;
        const std::string_view name = file.name();
        const std::uint64_t hash = XXH3_64bits_withSeed(
            name.data(), name.size(), training_.seed + static_cast<std::uint64_t>(block));
        if (hash <= threshold_ && load(file, block * kBlockBytes)) {
          return true;
        }
      }
    }
    return false;
  }

  bool load(const InputFile& file, std::int64_t offset) {
    try {
      TextReader reader(file.path);
      reader.seek(offset);
      const auto whole = [](std::string_view text) { return text.size(); };
      if (!reader.next(block_, kBlockBytes, whole) || block_.find('\0') != std::string::npos) {
        block_.clear();
      }
    } catch (const ReadFailure&) {
      block_.clear();  // preparing the data will name it
    }
    next_line_ = 0;
    if (offset > 0) {
      const std::size_t line_end = block_.find('\n');
      next_line_ = line_end == std::string::npos ? 0 : line_end + 1;
    }
    return next_line_ < block_.size();
  }

  const std::vector<const InputFile*>& files_;
  const SentencePieceTraining& training_;
  const std::function<bool()>& stop_requested_;
  std::uint64_t threshold_ = 0;
  std::size_t next_file_ = 0;
  std::int64_t next_block_ = 0;
  std::string block_;
  std::size_t next_line_ = 0;
  std::optional<std::string> sentence_;
};

/// The library's sentence without the source line and condition that it puts in front.
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
  SampledLines lines(files, training, stop_requested);
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
