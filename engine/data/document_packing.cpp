#include "engine/data/document_packing.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/config/data_config.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// A set of small numbers that finds its smallest from a given one on: a bit each, and above every
/// 64 bits one that says whether any of them is set.
class SmallNumbers {
 public:
  explicit SmallNumbers(std::size_t below) {
    do {
      below = (below + 63) / 64;
      levels_.emplace_back(below, 0);
    } while (below > 1);
  }
  void insert(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      level[number / 64] |= std::uint64_t{1} << (number % 64);
      number /= 64;
    }
  }
  void erase(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      level[number / 64] &= ~(std::uint64_t{1} << (number % 64));
      if (level[number / 64] != 0) {
        return;
      }
      number /= 64;
    }
  }
  [[nodiscard]] std::optional<std::size_t> smallest_from(std::size_t number) const {
    std::size_t level = 0;
    std::uint64_t found = 0;
    for (; level < levels_.size() && number / 64 < levels_[level].size(); ++level) {
      found = levels_[level][number / 64] >> (number % 64);
      if (found != 0) {
        break;
      }
      number = number / 64 + 1;
    }
    if (found == 0) {
      return std::nullopt;
    }
    number += static_cast<std::size_t>(std::countr_zero(found));
    while (level-- > 0) {
      number = number * 64 + static_cast<std::size_t>(std::countr_zero(levels_[level][number]));
    }
    return number;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;
};

/// Sequences that are not full, by the number of tokens that still fit. Among several with the same
/// room, the last to come goes first.
class OpenSequences {
 public:
  explicit OpenSequences(std::int64_t sequence_T)
      : rooms_(static_cast<std::size_t>(sequence_T)),
        newest_(static_cast<std::size_t>(sequence_T), kNone) {}

  void add(std::uint32_t sequence, std::size_t room) {
    if (room == 0) {
      return;
    }
    if (sequence >= before_.size()) {
      before_.resize(sequence + 1);
    }
    before_[sequence] = newest_[room];
    newest_[room] = sequence;
    rooms_.insert(room);
  }
  struct Open {
    std::uint32_t sequence;
    std::size_t room;
  };
  /// Takes out the fullest that has room for `size` tokens.
  std::optional<Open> take(std::size_t size) {
    const auto room = rooms_.smallest_from(size);
    if (!room) {
      return std::nullopt;
    }
    const std::uint32_t sequence = newest_[*room];
    newest_[*room] = before_[sequence];
    if (newest_[*room] == kNone) {
      rooms_.erase(*room);
    }
    return Open{sequence, *room};
  }

 private:
  SmallNumbers rooms_;
  std::vector<std::uint32_t> newest_;  // by room
  std::vector<std::uint32_t> before_;  // by sequence: the next of the same room
};

}  // namespace

DocumentPacking::DocumentPacking(std::unique_ptr<DocumentIndex> documents,
                                 std::int64_t sequence_T,
                                 PackingRules rules)
    : documents_(std::move(documents)), sequence_T_(sequence_T), rules_(rules) {
  check(sequence_T > 0 && sequence_T <= kLongestPackedSequence, "packing into sequences of {}",
        sequence_T);
  check(!rules.pairs || (rules.longer != PackingRules::Longer::kContinue &&
                         documents_->num_documents() % 2 == 0),
        "packing {} documents in pairs", documents_->num_documents());
  if (documents_->num_documents() >= kNone) {
    throw ConfigError(fmt::format("{}: {} documents, of which 2^32 - 1 can be packed",
                                  documents_->path(), documents_->num_documents()));
  }
  place(sort_items());
  if (num_documents_ == 0) {
    throw ConfigError(fmt::format("{}: its documents have no tokens", documents_->path()));
  }
}

std::int64_t DocumentPacking::length_of(std::int64_t item) const {
  const std::int64_t length = first_token(item + 1) - first_token(item);
  if (length <= sequence_T_ || rules_.longer == PackingRules::Longer::kContinue) return length;
  if (rules_.longer == PackingRules::Longer::kDrop) return 0;
  if (!rules_.pairs) return sequence_T_;
  std::int64_t kept = 0;
  for (const Piece& piece : pieces_of_pair(item)) {
    kept += piece.size;
  }
  return kept;
}

std::vector<DocumentPacking::Piece> DocumentPacking::pieces_of_pair(std::int64_t item) const {
  const bool is_cut = first_token(item + 1) - first_token(item) > sequence_T_;
  std::vector<Piece> pieces;
  for (std::int64_t document = 2 * item; document < 2 * item + 2; ++document) {
    const std::int64_t begin = documents_->first_token(document);
    const std::int64_t size = documents_->first_token(document + 1) - begin;
    pieces.push_back({.begin = begin, .size = is_cut ? std::min(size, sequence_T_ / 2) : size});
  }
  return pieces;
}

/// Also notes, on the way, the documents that fill sequences alone.
DocumentPacking::SortedItems DocumentPacking::sort_items() {
  const auto for_each_item = [&](auto&& visit) {
    std::int64_t begin = 0;
    for (std::int64_t item = 0; item < num_items(); ++item) {
      const std::int64_t end = first_token(item + 1);
      visit(static_cast<std::uint32_t>(item), end - begin, length_of(item));
      begin = end;
    }
  };
  SortedItems sorted;
  std::vector<std::uint32_t>& end_of_size = sorted.end_of_size;
  end_of_size.assign(static_cast<std::size_t>(sequence_T_), 0);
  for_each_item([&](std::uint32_t item, std::int64_t whole, std::int64_t length) {
    num_documents_ += length > 0 ? 1 : 0;
    num_tokens_ += length;
    num_cut_ += whole > sequence_T_ ? 1 : 0;
    if (length >= sequence_T_) {
      alone_.push_back(item);
      alone_end_.push_back(num_alone() + length / sequence_T_);
    }
    end_of_size[static_cast<std::size_t>(length % sequence_T_)] += 1;
  });
  // Counts become beginnings, which move to the ends as the items come in.
  std::uint32_t num_rests = 0;
  for (std::size_t size = end_of_size.size(); size-- > 1;) {
    num_rests += std::exchange(end_of_size[size], num_rests);
  }
  sorted.items.resize(num_rests);
  for_each_item([&](std::uint32_t item, std::int64_t /*whole*/, std::int64_t length) {
    if (const auto size = static_cast<std::size_t>(length % sequence_T_); size > 0) {
      sorted.items[end_of_size[size]++] = item;
    }
  });
  return sorted;
}

void DocumentPacking::place(const SortedItems& sorted) {
  const auto full = static_cast<std::size_t>(sequence_T_);
  OpenSequences open(sequence_T_);
  std::vector<std::uint32_t> sequence_of(sorted.items.size());
  std::uint32_t num_sequences = 0;
  std::size_t item = 0;
  for (std::size_t size = full; size-- > 1;) {
    for (; item < sorted.end_of_size[size]; ++item) {
      const auto fullest = rules_.one_each ? std::nullopt : open.take(size);
      const std::uint32_t sequence = fullest ? fullest->sequence : num_sequences++;
      open.add(sequence, (fullest ? fullest->room : full) - size);
      sequence_of[item] = sequence;
    }
  }
  first_item_.assign(std::size_t{num_sequences} + 1, 0);
  for (const std::uint32_t sequence : sequence_of) {
    first_item_[sequence] += 1;
  }
  std::partial_sum(first_item_.begin(), first_item_.end(), first_item_.begin());
  items_.resize(sequence_of.size());
  for (std::size_t i = sequence_of.size(); i-- > 0;) {
    items_[--first_item_[sequence_of[i]]] = sorted.items[i];
  }
  alone_.shrink_to_fit();
  alone_end_.shrink_to_fit();
}

std::vector<DocumentPacking::Piece> DocumentPacking::pieces(std::int64_t index) const {
  check(index >= 0 && index < num_sequences(), "sequence {} of {}", index, num_sequences());
  if (index < num_alone()) {
    const auto end = std::upper_bound(alone_end_.begin(), alone_end_.end(), index);
    const auto which = static_cast<std::size_t>(end - alone_end_.begin());
    const std::int64_t earlier = which == 0 ? 0 : alone_end_[which - 1];
    const std::int64_t item = alone_[which];
    if (rules_.pairs) return pieces_of_pair(item);
    const std::int64_t first = (index - earlier) * sequence_T_;
    return {{.begin = first_token(item) + first,
             .size = sequence_T_,
             .ends_document = first + sequence_T_ == length_of(item)}};
  }
  const auto sequence = static_cast<std::size_t>(index - num_alone());
  std::vector<Piece> pieces;
  for (std::uint32_t i = first_item_[sequence]; i < first_item_[sequence + 1]; ++i) {
    if (rules_.pairs) {
      const std::vector<Piece> pair = pieces_of_pair(items_[i]);
      pieces.insert(pieces.end(), pair.begin(), pair.end());
      continue;
    }
    const std::int64_t end = first_token(std::int64_t{items_[i]} + 1);
    const std::int64_t size = length_of(items_[i]) % sequence_T_;
    pieces.push_back({.begin = end - size, .size = size});
  }
  return pieces;
}

double DocumentPacking::fill() const {
  return static_cast<double>(num_tokens_) /
         (static_cast<double>(num_sequences()) * static_cast<double>(sequence_T_));
}

}  // namespace dstrain
