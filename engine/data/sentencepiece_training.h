// Makes a SentencePiece model from a bounded sample of text files. The model loses nothing: text is
// not normalised, no space is put in front, text that has no piece of its own (line ends, rare
// characters) becomes bytes; so decoding gives the text back, and pieces of a text can be encoded
// one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/input/input_files.h"

namespace dstrain {

struct SentencePieceTraining {
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;
  int threads = 1;
  std::int64_t sample_bytes = std::int64_t{16} << 20;  ///< about how much text it looks at
  JsonField field{"text"};                             ///< of JSON lines
  std::int64_t longest_line = std::int64_t{64} << 20;  ///< of JSON lines
};

/// Returns the serialized model. Throws ConfigError if no such model can be made of this text
/// (too little of it for the vocabulary, or a vocabulary too small for its characters).
std::string train_sentencepiece(const std::vector<const InputFile*>& files,
                                const SentencePieceTraining& training,
                                const std::function<bool()>& stop_requested);

}  // namespace dstrain
