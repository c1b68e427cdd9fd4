// Tokenizer: text to ids and back. `bytes` needs no model and loses nothing: 256 ids, one a byte.
// `sentencepiece:MODEL` is any model file of SentencePiece (LLaMA's, Mistral's, one of
// prepare-data's own). Both may be used by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

class Tokenizer {
 public:
  /// `name` is "bytes" or "sentencepiece:MODEL". Throws ConfigError.
  static std::unique_ptr<Tokenizer> make(const std::string& name);
  /// Takes a model that is not in a file yet.
  static std::unique_ptr<Tokenizer> from_sentencepiece_model(const std::string& serialized);
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Ids that stand for no text, but for where one begins and ends, if there are such. encode()
  /// adds neither.
  [[nodiscard]] virtual std::optional<std::int32_t> beginning_of_text() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_text() const = 0;
  /// Appends the ids of `text` to `ids`.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// Throws ConfigError if an id is not in the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// How much of a text that is too long for one call goes first, the rest following in another
  /// call: all of it where tokens do not depend on their neighbours, else up to a line's end, else
  /// whole characters. Between 1 and text.size().
  [[nodiscard]] virtual std::size_t length_to_cut(std::string_view text) const = 0;
  /// How many bytes of text one call should have at most.
  [[nodiscard]] virtual std::size_t longest_text() const = 0;
  /// Is encoding, not the disk, what takes the time, so that threads help?
  [[nodiscard]] virtual bool is_slow() const = 0;
};

/// The file that a "sentencepiece:MODEL" names. Throws ConfigError.
std::string read_sentencepiece_model(const std::string& name);

}  // namespace dstrain
