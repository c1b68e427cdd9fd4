// LineReader: reads a stream of any length as blocks of whole lines. A line that is longer than a
// bound is skipped, never held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/data/input/byte_stream.h"

namespace dstrain {

class LineReader {
 public:
  /// `longest_line` is in bytes without the line's end. A line that is a little longer may still
  /// come.
  LineReader(ByteStream& stream, std::int64_t longest_line)
      : stream_(stream), longest_line_(static_cast<std::size_t>(longest_line)) {}

  enum class Next : std::uint8_t {
    kLines,        ///< one or more, whole, each with its end but perhaps the stream's last one
    kLineTooLong,  ///< one line was passed over; the block is empty
    kEnd
  };
  /// Replaces `block` by about `bytes` bytes of lines, more where one line is longer. Throws what
  /// the stream throws.
  Next next(std::string& block, std::size_t bytes);
  /// The number of bytes of the stream in the blocks so far and in skipped lines.
  [[nodiscard]] std::int64_t position() const { return position_; }

 private:
  bool fill(std::string& block, std::size_t bytes);
  void pass_over(std::string& block);

  ByteStream& stream_;
  std::size_t longest_line_;
  std::string kept_;  ///< the beginning of a line, read already
  std::int64_t position_ = 0;
};

}  // namespace dstrain
