// PieceTable: distinct pieces of text and how often each was seen. It takes 32 bytes per piece
// beside its text, of which it holds at most 4 GiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

class PieceTable {
 public:
  /// `hash` is the piece's, by a function of the caller's choice. Returns whether the piece is new.
  bool add(std::string_view piece, std::uint64_t hash, std::int64_t count) {
    if (2 * entries_.size() >= places_.size()) {
      grow();
    }
    std::size_t place = hash & (places_.size() - 1);
    for (; places_[place] != 0; place = (place + 1) & (places_.size() - 1)) {
      Entry& entry = entries_[places_[place] - 1];
      if (entry.hash == hash && text_of(entry) == piece) {
        entry.count += count;
        return false;
      }
    }
    entries_.push_back({hash, count, static_cast<std::uint32_t>(text_.size()),
                        static_cast<std::uint32_t>(piece.size())});
    places_[place] = static_cast<std::uint32_t>(entries_.size());
    text_ += piece;
    return true;
  }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] std::size_t bytes() const { return text_.size(); }

  /// Calls visit(piece, hash, count) for each piece, in the order in which they came.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : entries_) {
      visit(text_of(entry), entry.hash, entry.count);
    }
  }
  /// Removes all pieces, but keeps the memory.
  void clear() {
    places_.assign(places_.size(), 0);
    entries_.clear();
    text_.clear();
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::int64_t count;
    std::uint32_t begin;  ///< in text_
    std::uint32_t length;
  };

  [[nodiscard]] std::string_view text_of(const Entry& entry) const {
    return std::string_view(text_).substr(entry.begin, entry.length);
  }
  void grow() {
    places_.assign(places_.empty() ? 64 : 2 * places_.size(), 0);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      std::size_t place = entries_[i].hash & (places_.size() - 1);
      while (places_[place] != 0) {
        place = (place + 1) & (places_.size() - 1);
      }
      places_[place] = static_cast<std::uint32_t>(i + 1);
    }
  }

  std::vector<std::uint32_t> places_;  ///< an entry's number from 1 on; 0: free. Half of them are
  std::vector<Entry> entries_;
  std::string text_;
};

}  // namespace dstrain
