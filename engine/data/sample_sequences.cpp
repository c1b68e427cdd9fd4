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

std::unique_ptr<DocumentIndex> index_of(const std::string& prefix) {
  auto index = DocumentIndex::open(prefix);
  if (index == nullptr || !index->has_modes()) {
    throw ConfigError(
        fmt::format("{}: nothing says which of its tokens are trained, as data.samples has it: "
                    "expected what prepare-data --chat writes; or data.samples false",
                    prefix));
  }
  return index;
}

class SampleSequences final : public Sequences {
 public:
  SampleSequences(std::unique_ptr<TokenFile> file,
                  std::string prefix,
                  std::int64_t sequence_T,
                  const PackingRules& rules)
      : file_(std::move(file)),
        prefix_(std::move(prefix)),
        sequence_T_(sequence_T),
        rules_(rules),
        packing_(index_of(prefix_), sequence_T, rules) {
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
        if ((part.mode & kContextMode) != 0) continue;
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

  [[nodiscard]] std::string report() const override {
    std::string text =
        fmt::format("{}: {} in {} of {} tokens, {:.2f} % full", prefix_,
                    counted(packing_.num_documents(), "sample"), counted(count(), "sequence"),
                    sequence_T_, 100.0 * packing_.fill());
    if (packing_.num_cut() > 0) {
      const bool are_dropped = rules_.longer == PackingRules::Longer::kDrop;
      text += fmt::format("; {} longer than a sequence and {}, with {} trained tokens",
                          counted(packing_.num_cut(), "sample"), are_dropped ? "left out" : "cut",
                          grouped(lost_tokens_));
      if (untrained_samples_ > 0) {
        text += fmt::format(", {} of which have none left", grouped(untrained_samples_));
      }
    }
    return text;
  }

 private:
  /// What becomes of trained tokens behind the end of a sequence.
  void count_losses() {
    const DocumentIndex& index = packing_.documents();
    if (packing_.num_cut() == 0) return;
    for (std::int64_t sample = 0; sample < index.num_documents(); ++sample) {
      const std::int64_t begin = index.first_token(sample);
      if (index.first_token(sample + 1) - begin <= sequence_T_) continue;
      const std::int64_t kept =
          begin + (rules_.longer == PackingRules::Longer::kCut ? sequence_T_ : 0);
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
  PackingRules rules_;
  DocumentPacking packing_;
  std::int64_t lost_tokens_ = 0;
  std::int64_t untrained_samples_ = 0;
};

}  // namespace

std::unique_ptr<Sequences> take_samples(std::unique_ptr<TokenFile> file,
                                        const std::string& prefix,
                                        std::int64_t sequence_T,
                                        DocumentPack pack,
                                        LongSamples longer) {
  using Longer = PackingRules::Longer;
  return std::make_unique<SampleSequences>(
      std::move(file), prefix, sequence_T,
      PackingRules{.longer = longer == LongSamples::kCut ? Longer::kCut : Longer::kDrop,
                   .one_each = pack == DocumentPack::kNone});
}

}  // namespace dstrain
