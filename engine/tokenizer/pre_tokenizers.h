// Pre-tokenizers: how a tokenizer.json cuts a text into the pieces that its model sees one by one.
#pragma once

#include <memory>

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/section_text.h"

namespace dstrain {

class PreTokenizer {
 public:
  /// Whether another pre-tokenizer follows. A ByteLevel that is the last leaves the bytes as they
  /// are, instead of making a character of each, and the model takes them so.
  enum class Position : std::uint8_t { kInside, kLast };
  /// Throws a ConfigError that names a kind that is not known.
  static std::unique_ptr<PreTokenizer> make(const JsonPart& part,
                                            Position position = Position::kLast);
  PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual ~PreTokenizer() = default;

  /// Replaces the section's pieces, and its text where that changes.
  virtual void apply(SectionText& section) const = 0;
  /// Whether the pieces are arbitrary bytes, not characters.
  [[nodiscard]] virtual bool leaves_bytes() const { return false; }
};

}  // namespace dstrain
