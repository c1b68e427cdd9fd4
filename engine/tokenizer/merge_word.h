// Byte pair encoding of one word: merges the pair of neighbours with the lowest rank, the first of
// equals, until no pair is left that may be merged (Sennrich et al. 2016, arXiv:1508.07909).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tokenizer/merge_table.h"

namespace dstrain {

class WordMerger {
 public:
  /// Merges the ids in `word` from `begin` on, in place.
  void merge(const MergeTable& table, std::vector<std::int32_t>& word, std::size_t begin);

 private:
  struct Link {  ///< a token between its neighbours; those merged away have none
    std::int32_t id;
    std::int32_t before;
    std::int32_t behind;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t at;
    std::int32_t id;
  };
  void merge_short(const MergeTable& table, std::vector<std::int32_t>& word, std::size_t begin);
  void merge_long(const MergeTable& table, std::vector<std::int32_t>& word, std::size_t begin);
  void push_candidate(const MergeTable& table, std::int32_t left);

  std::vector<Merge> pairs_;
  std::vector<Link> links_;
  std::vector<Candidate> heap_;
};

}  // namespace dstrain
