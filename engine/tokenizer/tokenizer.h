// Tokenizer: turns text into ids and back, whatever its kind (tokenizer_source.h says how one is
// named). Any of them may be used by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// The place of a text in its document: some tokenizers put a space in front of a document.
enum class TextPlace : std::uint8_t { kBegins, kContinues };

/// Takes texts in parts. A tokenizer turns them into ids; piece_counter.h counts them.
class TextEncoder {
 public:
  TextEncoder() = default;
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;
  virtual ~TextEncoder() = default;

  /// Appends the ids of a document, or of a part of one that was cut where length_to_cut says.
  virtual void encode_part(std::string_view text,
                           TextPlace place,
                           std::vector<std::int32_t>& ids) const = 0;
  /// The length of the part that goes first of a text that is too long for one call, the rest
  /// following in another call: all of it where tokens do not depend on their neighbours, else up
  /// to a line end, else whole characters. Between 1 and text.size().
  [[nodiscard]] virtual std::size_t length_to_cut(std::string_view text) const = 0;
  /// The most bytes of text that one call should have.
  [[nodiscard]] virtual std::size_t longest_text() const = 0;
};

class Tokenizer : public TextEncoder {
 public:
  /// `name` is what TokenizerSource::find takes. Throws ConfigError.
  static std::unique_ptr<Tokenizer> make(const std::string& name);

  /// All ids are below it.
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Ids that stand for no text, but for where one begins and ends, if there are such. encode()
  /// adds neither.
  [[nodiscard]] virtual std::optional<std::int32_t> beginning_of_text() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_text() const = 0;
  /// Whether the tokenizer's own file says that beginning_of_text goes in front of every text.
  [[nodiscard]] virtual bool always_begins() const { return false; }
  /// Appends the ids of `text` to `ids`.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const {
    encode_part(text, TextPlace::kBegins, ids);
  }
  /// The text of the ids, without those that stand for no text. It need not be UTF-8, as ids may
  /// end within a character. Throws ConfigError if an id is not in the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// The text of a special token, which decode() leaves out; "" of any other.
  [[nodiscard]] virtual std::string special_text(std::int32_t /*id*/) const { return ""; }
};

/// Makes the tokenizer of 256 ids, one per byte: it needs no model and loses nothing.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Makes the tokenizer of any SentencePiece model file (LLaMA's, Mistral's, one of prepare-data's
/// own); `name` is what an error calls it. Throws ConfigError.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    const std::string& serialized, const std::string& name = "the model just made");

}  // namespace dstrain
