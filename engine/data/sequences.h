// Sequences: the samples that one token file makes: which of its tokens are in sequence k, and what
// each of them should predict. There are two ways to make them: the stream of tokens cut every T of
// them, and documents packed so that they are cut no more than necessary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/document_packing.h"
#include "engine/data/token_dataset.h"

namespace dstrain {

/// A sample in a sequence.
struct PlacedSample {
  std::int64_t document = 0;  ///< of the file
  std::int64_t begin = 0;     ///< in the sequence
  std::int64_t size = 0;
  struct Run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<Run> answers{};  ///< positions in the sequence whose targets are an answer's tokens
  bool is_liked = false;       ///< a rated answer that was

  [[nodiscard]] std::int64_t num_answer_tokens() const {
    std::int64_t tokens = 0;
    for (const Run& run : answers) {
      tokens += run.end - run.begin;
    }
    return tokens;
  }
};

class Sequences {
 public:
  Sequences() = default;
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;
  virtual ~Sequences() = default;

  [[nodiscard]] virtual std::int64_t count() const = 0;
  /// All of the file's.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// Of the file, in a sequence on average: T, or less where sequences are filled up.
  [[nodiscard]] virtual double mean_tokens() const = 0;
  /// Starts fetching sequence `index` from the disk, without waiting.
  virtual void will_need(std::int64_t index) const = 0;
  /// Reads T inputs and as many targets of sequence `index`, in [0, count()). Throws as
  /// TokenFile::read.
  virtual void read(std::int64_t index,
                    std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const = 0;
  /// The samples of sequence `index`, in order; none where it is not made of samples.
  [[nodiscard]] virtual std::vector<PlacedSample> samples(std::int64_t /*index*/) const {
    return {};
  }
  /// Reads, as a sequence by itself, the prompt of sample `document` with the answer of the sample
  /// in front of it, or of the last one; cut to T. Only of rated answers.
  virtual void read_mismatched(std::int64_t /*document*/,
                               std::span<std::int32_t> /*inputs*/,
                               std::span<std::int32_t> /*targets*/) const {}
  /// nullptr: the stream of tokens is cut.
  [[nodiscard]] virtual const DocumentPacking* packing() const { return nullptr; }
  /// What is worth a line at a run's start; empty: nothing.
  [[nodiscard]] virtual std::string report() const { return ""; }
};

/// Sequence k is tokens [kT, kT + T), and its targets are [kT + 1, kT + T + 1), across the borders
/// of documents. A rest that makes no whole sequence is left out. `file` has more than T tokens.
std::unique_ptr<Sequences> cut_stream(std::unique_ptr<TokenFile> file, std::int64_t sequence_T);

/// DocumentPacking's sequences of the Megatron pair `prefix`, whose tokens are in `file`. A token's
/// target is the one after it, in its document or, at the end of that, in the next one of the
/// sequence. Where nothing follows the last document its last target is ignored, and so are those
/// of the tokens that fill the sequence up. `required_end`: the token that documents must end with,
/// where it is what tells them apart in a sequence. Throws ConfigError where nothing says where
/// documents begin, or one does not end as it must.
std::unique_ptr<Sequences> pack_documents(std::unique_ptr<TokenFile> file,
                                          const std::string& prefix,
                                          std::int64_t sequence_T,
                                          std::optional<std::int32_t> required_end);

/// Samples of fine-tuning data: documents whose .idx says which of their tokens are trained. Only
/// those are targets, and a sample's last token has the target kLastOfDocument. `data`'s pack,
/// long_samples, sample_kind and chosen_prompts say how; pack kNone gives each, or each pair, a
/// sequence for itself. Throws ConfigError where the Megatron pair holds no samples of the kind.
std::unique_ptr<Sequences> take_samples(std::unique_ptr<TokenFile> file,
                                        const std::string& prefix,
                                        const DataConfig& data);

}  // namespace dstrain
