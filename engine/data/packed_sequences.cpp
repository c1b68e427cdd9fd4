#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"
#include "engine/data/document_packing.h"
#include "engine/data/sequences.h"
#include "kernels/ignored_target.h"

namespace dstrain {
namespace {

/// In a large file, not all documents are checked before they are read.
constexpr std::int64_t kEndsLookedAt = 4096;

std::unique_ptr<DocumentIndex> index_of(const std::string& prefix) {
  auto index = DocumentIndex::open(prefix);
  if (index == nullptr) {
    throw ConfigError(
        fmt::format("{}: nothing says where its documents begin, which data.pack \"best_fit\" "
                    "packs: expected a Megatron pair, .bin and .idx, as prepare-data writes; or "
                    "data.pack \"none\"",
                    prefix));
  }
  return index;
}

class PackedSequences final : public Sequences {
 public:
  PackedSequences(std::unique_ptr<TokenFile> file,
                  const std::string& prefix,
                  std::int64_t sequence_T,
                  std::optional<std::int32_t> required_end)
      : file_(std::move(file)),
        prefix_(prefix),
        sequence_T_(sequence_T),
        required_end_(required_end),
        packing_(index_of(prefix), sequence_T) {
    look_at_ends();
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
    const std::vector<DocumentPacking::Piece> pieces = packing_.pieces(index);
    std::size_t at = 0;
    for (const DocumentPacking::Piece& piece : pieces) {
      const auto size = static_cast<std::size_t>(piece.size);
      file_->read(piece.begin, inputs.subspan(at, size));
      at += size;
      if (piece.ends_document) {
        require_end(piece.begin + piece.size - 1, inputs[at - 1]);
      }
    }
    std::copy(inputs.begin() + 1, inputs.begin() + static_cast<std::ptrdiff_t>(at),
              targets.begin());
    // The target of the last one is the next token of a document that continues in another
    // sequence.
    targets[at - 1] = kIgnoredTarget;
    if (const DocumentPacking::Piece& last = pieces.back(); !last.ends_document) {
      file_->read(last.begin + last.size, targets.subspan(at - 1, 1));
    }
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(at), inputs.end(),
              required_end_.value_or(0));
    std::fill(targets.begin() + static_cast<std::ptrdiff_t>(at), targets.end(), kIgnoredTarget);
  }

  [[nodiscard]] std::string report() const override {
    return fmt::format(
        "{}: {} packed into {} of {} tokens, {:.2f} % full; {} longer than a sequence and cut",
        prefix_, counted(packing_.num_documents(), "document"), counted(count(), "sequence"),
        sequence_T_, 100.0 * packing_.fill(), counted(packing_.num_cut(), "document"));
  }

 private:
  void require_end(std::int64_t token, std::int32_t id) const {
    if (!required_end_ || id == *required_end_) {
      return;
    }
    throw ConfigError(fmt::format(
        "{}: document {} ends with token {}, and data.end_of_document is {}, by which documents "
        "are told apart in a sequence: prepare the data with --append-eod {}, or say which token "
        "ends its documents",
        prefix_, packing_.documents().document_of(token), id, *required_end_, *required_end_));
  }

  /// Checks now rather than in the middle of a run.
  void look_at_ends() const {
    if (!required_end_) {
      return;
    }
    const DocumentIndex& documents = packing_.documents();
    const std::int64_t stride =
        std::max<std::int64_t>(1, documents.num_documents() / kEndsLookedAt);
    for (std::int64_t document = 0; document < documents.num_documents(); document += stride) {
      const std::int64_t last = documents.first_token(document + 1) - 1;
      if (last >= documents.first_token(document)) {
        std::int32_t id = 0;
        file_->read(last, {&id, 1});
        require_end(last, id);
      }
    }
  }

  std::unique_ptr<TokenFile> file_;
  std::string prefix_;
  std::int64_t sequence_T_;
  std::optional<std::int32_t> required_end_;
  DocumentPacking packing_;
};

}  // namespace

std::unique_ptr<Sequences> pack_documents(std::unique_ptr<TokenFile> file,
                                          const std::string& prefix,
                                          std::int64_t sequence_T,
                                          std::optional<std::int32_t> required_end) {
  return std::make_unique<PackedSequences>(std::move(file), prefix, sequence_T, required_end);
}

}  // namespace dstrain
