// Decoders: how a tokenizer.json turns its tokens back into text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/json_part.h"

namespace dstrain {

class Decoder {
 public:
  /// Throws a ConfigError that names a kind that is not known.
  static std::unique_ptr<Decoder> make(const JsonPart& part);
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  /// Turns the texts of consecutive tokens into texts that only have to be joined.
  virtual void apply(std::vector<std::string>& texts) const = 0;
};

}  // namespace dstrain
