// DocumentPacking: decides which documents share a sequence, so that only those longer than one are
// cut (Ding et al. 2024, "Fewer truncations improve language modeling"). A document of L tokens
// fills floor(L / T) sequences alone; its rest, or all of a shorter one, is an item of the bin
// packing problem, solved by best-fit decreasing: the longest item first, each into the fullest
// sequence that has room for it. Where documents come in pairs, a pair is packed as one document
// is.
//
// A pure function of the documents' lengths and T, made in time linear in the documents. It keeps
// 4 bytes a document, 4 a sequence of several, 12 a document that fills sequences alone; while it
// is made, up to 16 bytes a document.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/document_index.h"

namespace dstrain {

/// What of a document longer than a sequence is packed, and whether documents share sequences.
struct PackingRules {
  enum class Longer : std::uint8_t {
    kContinue,  ///< all of it, in several sequences
    kCut,       ///< its first sequence; of a pair, of each its first half of a sequence
    kDrop       ///< nothing
  };
  Longer longer = Longer::kContinue;
  bool one_each = false;  ///< every document, or pair, has a sequence for itself
  /// Documents 2k and 2k + 1 share a sequence. Not with kContinue; their number is even.
  bool pairs = false;
};

class DocumentPacking {
 public:
  /// `sequence_T` is at most kLongestPackedSequence. Throws ConfigError if there are no tokens, or
  /// 2^32 documents.
  DocumentPacking(std::unique_ptr<DocumentIndex> documents,
                  std::int64_t sequence_T,
                  PackingRules rules = {});

  [[nodiscard]] std::int64_t num_sequences() const {
    return num_alone() + static_cast<std::int64_t>(first_item_.size()) - 1;
  }
  struct Piece {
    std::int64_t begin = 0;  ///< of the file's tokens
    std::int64_t size = 0;
    bool ends_document = true;
  };
  /// The pieces of sequence `index` in [0, num_sequences()), in order; together at most T tokens.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t index) const;

  /// The number of documents, or pairs, that have tokens to be packed, and of these.
  [[nodiscard]] std::int64_t num_documents() const { return num_documents_; }
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  /// The number of documents, or pairs, longer than a sequence.
  [[nodiscard]] std::int64_t num_cut() const { return num_cut_; }
  /// The share of the sequences' tokens that belongs to documents.
  [[nodiscard]] double fill() const;
  [[nodiscard]] const DocumentIndex& documents() const { return *documents_; }

 private:
  /// An item is what is packed as one: a document, or a pair of them.
  [[nodiscard]] std::int64_t documents_each() const { return rules_.pairs ? 2 : 1; }
  [[nodiscard]] std::int64_t num_items() const {
    return documents_->num_documents() / documents_each();
  }
  [[nodiscard]] std::int64_t first_token(std::int64_t item) const {
    return documents_->first_token(item * documents_each());
  }
  /// As far as it is packed.
  [[nodiscard]] std::int64_t length_of(std::int64_t item) const;
  /// The pieces of a pair that is packed.
  [[nodiscard]] std::vector<Piece> pieces_of_pair(std::int64_t item) const;
  /// The number of sequences of one piece of T tokens; they come first.
  [[nodiscard]] std::int64_t num_alone() const {
    return alone_end_.empty() ? 0 : alone_end_.back();
  }
  /// Items that have a rest, the longest rests first; those of one size in the file's order.
  struct SortedItems {
    std::vector<std::uint32_t> items;
    std::vector<std::uint32_t> end_of_size;  ///< behind the items whose rest has so many tokens
  };
  [[nodiscard]] SortedItems sort_items();
  void place(const SortedItems& sorted);

  std::unique_ptr<DocumentIndex> documents_;
  std::int64_t sequence_T_;
  PackingRules rules_;
  std::int64_t num_documents_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_cut_ = 0;
  std::vector<std::uint32_t> alone_;       ///< items of T tokens or more
  std::vector<std::int64_t> alone_end_;    ///< behind the sequences that each has for itself
  std::vector<std::uint32_t> items_;       ///< sequence after sequence
  std::vector<std::uint32_t> first_item_;  ///< of each sequence of items, then behind the last
};

}  // namespace dstrain
