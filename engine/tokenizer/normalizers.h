// Normalizers: what a tokenizer.json changes in a text before it is cut into pieces.
#pragma once

#include <memory>

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/section_text.h"

namespace dstrain {

class Normalizer {
 public:
  /// Throws a ConfigError that names a kind that is not known.
  static std::unique_ptr<Normalizer> make(const JsonPart& part);
  Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual ~Normalizer() = default;

  /// Changes the text, and at_start where its first character goes.
  virtual void apply(SectionText& section) const = 0;
};

}  // namespace dstrain
