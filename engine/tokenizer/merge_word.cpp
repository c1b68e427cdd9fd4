#include "engine/tokenizer/merge_word.h"

#include <algorithm>
#include <limits>

namespace dstrain {
namespace {

// Up to this length, searching all pairs each time costs less than keeping them in order.
constexpr std::size_t kShortWord = 48;
constexpr std::int32_t kEnd = -1;
constexpr std::int32_t kMergedAway = -1;
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

}  // namespace

void WordMerger::merge(const MergeTable& table,
                       std::vector<std::int32_t>& word,
                       std::size_t begin) {
  const std::size_t length = word.size() - begin;
  if (length <= 1) {
    return;
  }
  length <= kShortWord ? merge_short(table, word, begin) : merge_long(table, word, begin);
}

void WordMerger::merge_short(const MergeTable& table,
                             std::vector<std::int32_t>& word,
                             std::size_t begin) {
  std::size_t length = word.size() - begin;
  std::int32_t* const ids = word.data() + begin;
  pairs_.resize(length);
  for (std::size_t i = 0; i + 1 < length; ++i) {
    pairs_[i] = table.find(ids[i], ids[i + 1]);
  }
  while (length > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < length; ++i) {
      best = pairs_[i].rank < pairs_[best].rank ? i : best;
    }
    if (pairs_[best].rank == kNoRank) {
      break;
    }
    ids[best] = pairs_[best].id;
    std::copy(ids + best + 2, ids + length, ids + best + 1);
    // The pair on the right is removed with the merged one; those of both neighbours are new.
    std::copy(pairs_.data() + best + 2, pairs_.data() + length, pairs_.data() + best + 1);
    --length;
    if (best > 0) {
      pairs_[best - 1] = table.find(ids[best - 1], ids[best]);
    }
    if (best + 1 < length) {
      pairs_[best] = table.find(ids[best], ids[best + 1]);
    }
  }
  word.resize(begin + length);
}

void WordMerger::push_candidate(const MergeTable& table, std::int32_t left) {
  const Link& link = links_[static_cast<std::size_t>(left)];
  if (link.behind == kEnd) {
    return;
  }
  const Merge merge = table.find(link.id, links_[static_cast<std::size_t>(link.behind)].id);
  if (merge.rank != kNoRank) {
    heap_.push_back({merge.rank, left, merge.id});
  }
}

void WordMerger::merge_long(const MergeTable& table,
                            std::vector<std::int32_t>& word,
                            std::size_t begin) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto push = [&](std::int32_t left) {
    const std::size_t before = heap_.size();
    push_candidate(table, left);
    if (heap_.size() > before) {
      std::push_heap(heap_.begin(), heap_.end(), later);
    }
  };
  const auto length = static_cast<std::int32_t>(word.size() - begin);
  links_.clear();
  heap_.clear();
  for (std::int32_t i = 0; i < length; ++i) {
    links_.push_back({word[begin + static_cast<std::size_t>(i)], i == 0 ? kEnd : i - 1,
                      i + 1 == length ? kEnd : i + 1});
  }
  for (std::int32_t i = 0; i < length; ++i) {
    push_candidate(table, i);
  }
  std::make_heap(heap_.begin(), heap_.end(), later);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    Link& left = links_[static_cast<std::size_t>(best.at)];
    if (left.id == kMergedAway || left.behind == kEnd) {
      continue;
    }
    // The pair may have changed since it was added.
    Link& right = links_[static_cast<std::size_t>(left.behind)];
    if (table.find(left.id, right.id).id != best.id) {
      continue;
    }
    left.id = best.id;
    left.behind = right.behind;
    right.id = kMergedAway;
    if (left.behind != kEnd) {
      links_[static_cast<std::size_t>(left.behind)].before = best.at;
      push(best.at);
    }
    if (left.before != kEnd) {
      push(left.before);
    }
  }
  word.resize(begin);
  for (std::int32_t i = 0; i != kEnd; i = links_[static_cast<std::size_t>(i)].behind) {
    word.push_back(links_[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace dstrain
