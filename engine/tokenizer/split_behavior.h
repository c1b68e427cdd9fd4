// Decides what becomes of a piece of text that is split at matches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/section_text.h"

namespace dstrain {

enum class SplitBehavior : std::uint8_t {
  kRemoved,             ///< matches go
  kIsolated,            ///< each match is a piece
  kContiguous,          ///< neighbouring matches are one piece
  kMergedWithPrevious,  ///< a match joins what is before it
  kMergedWithNext       ///< … or behind it
};

/// "Removed", "MergedWithPrevious", …
SplitBehavior split_behavior(const JsonPart& part);

/// The matches in one piece, and what lies between them.
class PieceMatches {
 public:
  /// Begins another piece; `inverted` says that what lies between counts as match, and the reverse.
  void start(std::uint32_t begin, bool inverted);
  /// Adds a match from `begin` to `end`, after the ones before.
  void add(std::uint32_t begin, std::uint32_t end);
  /// Appends the parts of the piece, which ends at `end`, that are left; none is empty.
  void finish(std::uint32_t end, SplitBehavior behavior, std::vector<TextSpan>& pieces);

 private:
  struct Part {
    TextSpan span;
    bool is_match;
  };
  std::vector<Part> parts_;
  std::uint32_t done_ = 0;
  bool inverted_ = false;
};

}  // namespace dstrain
