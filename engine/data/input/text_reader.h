// TextReader: reads a stream of any length as a row of texts of bounded size, cut where the
// tokenizer allows.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/data/input/byte_stream.h"

namespace dstrain {

class TextReader {
 public:
  /// Says where a text that fills the buffer is cut (Tokenizer::length_to_cut).
  using Cut = std::function<std::size_t(std::string_view)>;

  explicit TextReader(ByteStream& stream) : stream_(stream) {}

  /// Replaces `text` by the next at most `longest` bytes; false if there are none left. Throws what
  /// the stream throws.
  bool next(std::string& text, std::size_t longest, const Cut& cut);

 private:
  ByteStream& stream_;
  std::string kept_;  ///< read already, but behind the last cut
};

}  // namespace dstrain
