// TokenModel: the part of a tokenizer.json that turns a piece of text into ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/vocabulary.h"

namespace dstrain {

class TokenModel {
 public:
  /// Whether pieces are UTF-8 or bytes, each of which the vocabulary writes as a character.
  enum class Pieces : std::uint8_t { kCharacters, kBytes };
  /// The working memory of a call. Each thread has its own, and it keeps its buffers.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  /// Throws a ConfigError that names a kind that is not known.
  static std::unique_ptr<TokenModel> make(const JsonPart& part, Pieces pieces);
  TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;
  virtual ~TokenModel() = default;

  [[nodiscard]] virtual const Vocabulary& vocabulary() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Scratch> make_scratch() const = 0;
  /// Appends the ids of a piece, which is not empty. Throws ConfigError if the tokenizer has no
  /// token for a character, and no token for unknown ones.
  virtual void encode(std::string_view piece,
                      Scratch& scratch,
                      std::vector<std::int32_t>& ids) const = 0;
  /// The length of the beginning of a piece that has the same ids alone as with the rest after it.
  [[nodiscard]] virtual std::size_t independent_length(std::string_view piece) const {
    return piece.size();
  }
};

std::unique_ptr<TokenModel> make_bpe_model(const JsonPart& part, TokenModel::Pieces pieces);
std::unique_ptr<TokenModel> make_unigram_model(const JsonPart& part, TokenModel::Pieces pieces);

}  // namespace dstrain
