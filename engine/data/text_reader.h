// TextReader: a file of any size as a row of texts of bounded size, cut where the tokenizer allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/file_descriptor.h"

namespace dstrain {

/// Why a file ended up not being read. Caught where the file is counted as unreadable.
struct ReadFailure {
  std::string reason;
};

class TextReader {
 public:
  /// Where a text that fills the buffer is cut (Tokenizer::length_to_cut).
  using Cut = std::function<std::size_t(std::string_view)>;

  /// Throws ReadFailure.
  explicit TextReader(const std::string& path);
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  /// Replaces `text` by the next at most `longest` bytes; false if there are none left.
  bool next(std::string& text, std::size_t longest, const Cut& cut);
  /// Goes to byte `offset`; what next() had kept back is forgotten.
  void seek(std::int64_t offset);

 private:
  FileDescriptor file_;
  std::int64_t size_ = 0;  ///< when it was opened
  std::int64_t offset_ = 0;
  std::string kept_;  ///< read already, but behind the last cut
};

}  // namespace dstrain
