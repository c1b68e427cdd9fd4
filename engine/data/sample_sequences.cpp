#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/data/document_packing.h"
#include "engine/data/documents.h"
#include "engine/data/sequences.h"
#include "kernels/ignored_target.h"

namespace dstrain {
namespace {

PackingRules rules_of(const DataConfig& data) {
  using Longer = PackingRules::Longer;
  return {.longer = data.long_samples == LongSamples::kCut ? Longer::kCut : Longer::kDrop,
          .one_each = data.pack == DocumentPack::kNone,
          .pairs = data.sample_kind == SampleKind::kPairs};
}

constexpr std::uint8_t kRole = kChosenMode | kRejectedMode;

/// Whether every other sample was chosen, and those between rejected: what pairs look like, and,
/// once in a while, a small file of rated answers.
bool look_like_pairs(const DocumentIndex& index) {
  if (index.num_documents() % 2 != 0) return false;
  for (std::int64_t document = 0; document < index.num_documents(); ++document) {
    const std::uint8_t expected = document % 2 == 0 ? kChosenMode : kRejectedMode;
    if ((index.first_mode(document) & kRole) != expected) return false;
  }
  return true;
}

bool has_roles(const DocumentIndex& index) {
  for (std::int64_t document = 0; document < index.num_documents(); ++document) {
    if ((index.first_mode(document) & kRole) != 0) return true;
  }
  return false;
}

/// Refuses samples that the run would learn something else from than they say.
void require_kind(const DocumentIndex& index, SampleKind wanted) {
  const bool pairs = look_like_pairs(index);
  const bool rated = has_roles(index);
  const char* const found = pairs   ? "pairs of answers"
                            : rated ? "answers that were liked or not"
                                    : "single samples";
  const auto refuse = [&](const char* why, const char* expected) {
    throw ConfigError(
        fmt::format("{}: holds {}, and {}: expected {}", index.path(), found, why, expected));
  };
  switch (wanted) {
    case SampleKind::kPlain:
      if (!rated) return;
      refuse("training on them as they stand would train what was rejected, too",
             "conversations or completions; or write \"preferences\": {\"loss_type\": …}");
      return;
    case SampleKind::kPairs:
      if (pairs) return;
      refuse("preferences.loss_type learns from pairs",
             "lines with \"chosen\" and \"rejected\"; \"kto\" learns from rated answers");
      return;
    case SampleKind::kRated:
      // TRL's KTO takes a pair for two rated answers, and so does this.
      if (rated) return;
      refuse("preferences.loss_type learns from answers that were liked or not",
             "lines with \"completion\" and \"label\"");
      return;
  }
}

std::unique_ptr<DocumentIndex> index_of(const std::string& prefix, SampleKind kind) {
  auto index = DocumentIndex::open(prefix);
  if (index == nullptr || !index->has_modes()) {
    throw ConfigError(
        fmt::format("{}: nothing says which of its tokens are trained, as data.samples has it: "
                    "expected what prepare-data --chat writes; or data.samples false",
                    prefix));
  }
  require_kind(*index, kind);
  return index;
}

class SampleSequences final : public Sequences {
 public:
  SampleSequences(std::unique_ptr<TokenFile> file, std::string prefix, const DataConfig& data)
      : file_(std::move(file)),
        prefix_(std::move(prefix)),
        sequence_T_(data.sequence_length),
        chosen_prompts_(data.chosen_prompts),
        rules_(rules_of(data)),
        packing_(index_of(prefix_, data.sample_kind), sequence_T_, rules_) {
    count_losses();
  }

  [[nodiscard]] std::int64_t count() const override { return packing_.num_sequences(); }
  [[nodiscard]] std::int64_t tokens() const override { return file_->num_tokens(); }
  [[nodiscard]] const DocumentPacking* packing() const override { return &packing_; }
  [[nodiscard]] double mean_tokens() const override {
    return packing_.fill() * static_cast<double>(sequence_T_);
  }

  void will_need(std::int64_t index) const override {
    for (const DocumentPacking::Piece& piece : packing_.pieces(index)) {
      file_->will_need(piece.begin, piece.size);
    }
  }

  void read(std::int64_t index,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const override {
    std::fill(targets.begin(), targets.end(), kIgnoredTarget);
    std::size_t at = 0;
    for (const DocumentPacking::Piece& piece : packing_.pieces(index)) {
      const auto size = static_cast<std::size_t>(piece.size);
      file_->read(piece.begin, inputs.subspan(at, size));
      const std::int64_t sample = packing_.documents().document_of(piece.begin);
      for (const DocumentIndex::Part& part : packing_.documents().parts(sample)) {
        if (!is_target(part)) continue;
        // A token is the target of the one in front of it; the first of a sample has none.
        const std::int64_t begin = std::max(part.begin, piece.begin + 1);
        const std::int64_t end = std::min(part.begin + part.size, piece.begin + piece.size);
        for (std::int64_t token = begin; token < end; ++token) {
          const std::size_t place = at + static_cast<std::size_t>(token - piece.begin);
          targets[place - 1] = inputs[place];
        }
      }
      at += size;
      targets[at - 1] = kLastOfDocument;
    }
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end(), 0);
  }

  [[nodiscard]] std::vector<PlacedSample> samples(std::int64_t index) const override {
    std::vector<PlacedSample> placed;
    std::int64_t at = 0;
    for (const DocumentPacking::Piece& piece : packing_.pieces(index)) {
      PlacedSample sample{.document = packing_.documents().document_of(piece.begin),
                          .begin = at,
                          .size = piece.size};
      for (const DocumentIndex::Part& part : packing_.documents().parts(sample.document)) {
        sample.is_liked = (part.mode & kChosenMode) != 0;
        if ((part.mode & kContextMode) != 0) continue;
        const std::int64_t begin = std::max(part.begin, piece.begin + 1);
        const std::int64_t end = std::min(part.begin + part.size, piece.begin + piece.size);
        // A token is the target of the one in front of it.
        const std::int64_t before = at - piece.begin - 1;
        if (begin < end) sample.answers.push_back({.begin = begin + before, .end = end + before});
      }
      at += piece.size;
      placed.push_back(std::move(sample));
    }
    return placed;
  }

  void read_mismatched(std::int64_t document,
                       std::span<std::int32_t> inputs,
                       std::span<std::int32_t> targets) const override {
    const DocumentIndex& index = packing_.documents();
    const std::int64_t other = document > 0 ? document - 1 : index.num_documents() - 1;
    std::fill(targets.begin(), targets.end(), kIgnoredTarget);
    std::size_t at = 0;
    const auto append = [&](const DocumentIndex::Part& part) {
      const std::size_t size = std::min(static_cast<std::size_t>(part.size), inputs.size() - at);
      file_->read(part.begin, inputs.subspan(at, size));
      at += size;
    };
    for (const DocumentIndex::Part& part : index.parts(document)) {
      if ((part.mode & kContextMode) == 0) break;
      append(part);
    }
    bool is_answer = false;
    for (const DocumentIndex::Part& part : index.parts(other)) {
      const bool is_trained = (part.mode & kContextMode) == 0;
      is_answer = is_answer || is_trained;
      if (!is_answer) continue;
      const std::size_t begin = std::max<std::size_t>(at, 1);
      append(part);
      for (std::size_t token = begin; token < at && is_trained; ++token) {
        targets[token - 1] = inputs[token];
      }
    }
    if (at > 0) targets[at - 1] = kLastOfDocument;
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end(), 0);
  }

  [[nodiscard]] std::string report() const override {
    std::string text =
        fmt::format("{}: {} in {} of {} tokens, {:.2f} % full", prefix_,
                    counted(packing_.num_documents(), sample()), counted(count(), "sequence"),
                    sequence_T_, 100.0 * packing_.fill());
    if (packing_.num_cut() > 0) {
      const bool are_dropped = rules_.longer == PackingRules::Longer::kDrop;
      text += fmt::format("; {} longer than a sequence and {}, with {} trained tokens",
                          counted(packing_.num_cut(), sample()), are_dropped ? "left out" : "cut",
                          grouped(lost_tokens_));
      if (untrained_samples_ > 0) {
        text += fmt::format(", {} of which have none left", grouped(untrained_samples_));
      }
    }
    return text;
  }

 private:
  [[nodiscard]] const char* sample() const { return rules_.pairs ? "pair" : "sample"; }
  [[nodiscard]] bool is_target(const DocumentIndex::Part& part) const {
    return (part.mode & kContextMode) == 0 || (chosen_prompts_ && (part.mode & kChosenMode) != 0);
  }

  /// What becomes of trained tokens behind the end of a sequence.
  void count_losses() {
    const DocumentIndex& index = packing_.documents();
    if (packing_.num_cut() == 0) return;
    const std::int64_t each = rules_.pairs ? 2 : 1;
    for (std::int64_t sample = 0; sample < index.num_documents(); ++sample) {
      const std::int64_t begin = index.first_token(sample);
      const std::int64_t item = sample / each * each;
      if (index.first_token(item + each) - index.first_token(item) <= sequence_T_) continue;
      const std::int64_t kept =
          begin + (rules_.longer == PackingRules::Longer::kCut ? sequence_T_ / each : 0);
      std::int64_t left = 0;
      for (const DocumentIndex::Part& part : index.parts(sample)) {
        if ((part.mode & kContextMode) != 0) continue;
        const std::int64_t behind =
            std::clamp<std::int64_t>(part.begin + part.size - kept, 0, part.size);
        lost_tokens_ += behind;
        left += part.size - behind;
      }
      untrained_samples_ += left == 0 && kept > begin ? 1 : 0;
    }
  }

  std::unique_ptr<TokenFile> file_;
  std::string prefix_;
  std::int64_t sequence_T_;
  bool chosen_prompts_;
  PackingRules rules_;
  DocumentPacking packing_;
  std::int64_t lost_tokens_ = 0;
  std::int64_t untrained_samples_ = 0;
};

}  // namespace

std::unique_ptr<Sequences> take_samples(std::unique_ptr<TokenFile> file,
                                        const std::string& prefix,
                                        const DataConfig& data) {
  return std::make_unique<SampleSequences>(std::move(file), prefix, data);
}

}  // namespace dstrain
