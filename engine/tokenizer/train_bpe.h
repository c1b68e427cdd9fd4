// BpeTrainer: learns a byte-level BPE vocabulary from pieces of text and how often each occurs
// (Sennrich et al. 2016, arXiv:1508.07909). The vocabulary begins with the special tokens and the
// 256 bytes; then the pair of neighbouring tokens that occurs most often becomes a token, again and
// again. Of pairs that occur equally often, the one whose left token has the lower id comes first,
// then the one whose right token has. What comes out depends on neither the order of the pieces
// nor on threads, and is what the `tokenizers` package's BpeTrainer makes.
//
// Each token of the text is visited when it comes into being and when it goes, so the time grows
// with the text's distinct pieces, however long they are: 12 bytes of memory for each of their
// bytes, and about 8 for where each pair occurs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/byte_level_json.h"

namespace dstrain {

class BpeTrainer {
 public:
  /// The special tokens have the first ids.
  explicit BpeTrainer(std::vector<std::string> specials);
  BpeTrainer(const BpeTrainer&) = delete;
  BpeTrainer& operator=(const BpeTrainer&) = delete;
  ~BpeTrainer();

  /// Says how much is to be added in all, so that it is allocated once.
  void reserve(std::size_t pieces, std::size_t bytes);
  /// A piece must not be added twice. All of them together have less than 2^32 bytes.
  void add(std::string_view piece, std::int64_t count);

  /// Pairs that occur less often do not become tokens, so that a short text makes a smaller
  /// vocabulary than was asked for.
  static constexpr std::int64_t kLeastCount = 2;
  /// `goes_on` is called now and then, with the number of tokens so far; where it returns false,
  /// the vocabulary stays incomplete. To be called once only.
  ByteLevelBpe train(std::int64_t vocab_size,
                     const std::function<bool(std::int64_t tokens)>& goes_on);

 private:
  class Merging;
  /// A byte of a piece. The first one of a token has the token's id, the first and the last one its
  /// length.
  struct Symbol {
    std::int32_t id;
    std::uint32_t length;
    std::uint32_t piece;
  };

  std::vector<std::string> tokens_;  ///< by id: the bytes, or a special token's text
  std::size_t num_specials_;
  std::int32_t ids_of_bytes_[256];
  std::vector<Symbol> symbols_;       ///< of all pieces, with a border before and behind each
  std::vector<std::int64_t> counts_;  ///< of pieces
};

}  // namespace dstrain
