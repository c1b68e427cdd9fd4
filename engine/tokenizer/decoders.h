// Decoders: how a tokenizer.json makes text of its tokens again.
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

  /// The texts of tokens in a row become texts that only have to be put together.
  virtual void apply(std::vector<std::string>& texts) const = 0;
};

}  // namespace dstrain
