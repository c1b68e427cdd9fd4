// MergeTable: the pairs of tokens that byte pair encoding joins, into what, and in which order. The
// trainer numbers its pairs with it. Open addressing over one array: a look-up is mostly one line
// of memory.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace dstrain {

struct Merge {
  std::int32_t rank = std::numeric_limits<std::int32_t>::max();  ///< lower ones first
  std::int32_t id = -1;                                          ///< -1: the pair stays apart
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges) {
    std::size_t places = 16;
    while (places < 2 * num_merges) {
      places *= 2;
    }
    places_.resize(places);
  }

  /// Replaces the merge of a pair that is there already.
  void put(std::int32_t left, std::int32_t right, Merge merge) {
    if (2 * size_ >= places_.size()) {
      grow();
    }
    put({key_of(left, right), merge});
  }

  [[nodiscard]] Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    std::size_t place = first_place(key);
    while (places_[place].key != key) {
      if (places_[place].key == kEmpty) {
        return {};
      }
      place = (place + 1) & (places_.size() - 1);
    }
    return places_[place].merge;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Place {
    std::uint64_t key = kEmpty;
    Merge merge{};
  };

  void put(const Place& entry) {
    std::size_t place = first_place(entry.key);
    while (places_[place].key != kEmpty && places_[place].key != entry.key) {
      place = (place + 1) & (places_.size() - 1);
    }
    size_ += places_[place].key == kEmpty ? 1 : 0;
    places_[place] = entry;
  }
  void grow() {
    const auto before = std::exchange(places_, std::vector<Place>(2 * places_.size()));
    size_ = 0;
    for (const Place& entry : before) {
      if (entry.key != kEmpty) {
        put(entry);
      }
    }
  }

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t first_place(std::uint64_t key) const {
    const std::uint64_t mixed = key * 0x9E3779B97F4A7C15U;
    return (mixed ^ mixed >> 32U) & (places_.size() - 1);
  }

  std::vector<Place> places_;  ///< a power of two, at least half of them empty
  std::size_t size_ = 0;
};

}  // namespace dstrain
