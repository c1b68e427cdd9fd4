#include "engine/tokenizer/split_behavior.h"

#include <algorithm>
#include <utility>

namespace dstrain {

SplitBehavior split_behavior(const JsonPart& part) {
  constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"Contiguous", SplitBehavior::kContiguous},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  for (const auto& [name, behavior] : kNames) {
    if (part.text() == name) {
      return behavior;
    }
  }
  part.fail("expected Removed, Isolated, Contiguous, MergedWithPrevious or MergedWithNext");
}

void PieceMatches::start(std::uint32_t begin, bool inverted) {
  parts_.clear();
  done_ = begin;
  inverted_ = inverted;
}

void PieceMatches::add(std::uint32_t begin, std::uint32_t end) {
  if (begin > done_) {
    parts_.push_back({{done_, begin}, inverted_});
  }
  parts_.push_back({{begin, end}, !inverted_});
  done_ = end;
}

void PieceMatches::finish(std::uint32_t end,
                          SplitBehavior behavior,
                          std::vector<TextSpan>& pieces) {
  if (done_ < end) {
    parts_.push_back({{done_, end}, inverted_});
  }
  // The part that the next one is appended to or, from the right, put in front of.
  const auto joins = [&](const Part& part, const Part* last) {
    return last != nullptr &&
           (behavior == SplitBehavior::kContiguous ? part.is_match == last->is_match
                                                   : part.is_match && !last->is_match);
  };
  const auto keep = [&](TextSpan span) {
    if (span.begin < span.end) {
      pieces.push_back(span);
    }
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      for (const Part& part : parts_) {
        if (behavior == SplitBehavior::kIsolated || !part.is_match) {
          keep(part.span);
        }
      }
      return;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious: {
      TextSpan joined{};
      const Part* last = nullptr;
      for (const Part& part : parts_) {
        if (joins(part, last)) {
          joined.end = part.span.end;
        } else {
          keep(joined);
          joined = part.span;
        }
        last = &part;
      }
      keep(joined);
      return;
    }
    case SplitBehavior::kMergedWithNext: {
      const std::size_t first = pieces.size();
      TextSpan joined{};
      const Part* last = nullptr;
      for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
        if (joins(*part, last)) {
          joined.begin = part->span.begin;
        } else {
          keep(joined);
          joined = part->span;
        }
        last = &*part;
      }
      keep(joined);
      std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
    }
  }
}

}  // namespace dstrain
