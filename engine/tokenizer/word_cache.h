// WordCache: the ids of words that came before. Most text consists of a few thousand words, so that
// a model seldom has work to do. The cache has a fixed size, one thread uses it at a time, and a
// new word takes the place of another: nothing is allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <xxhash.h>

namespace dstrain {

class WordCache {
 public:
  /// Appends the ids of a word if it is in the cache.
  bool append(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMostBytes) {
      return false;
    }
    const Entry& entry = entries_[place(word)];
    if (entry.num_bytes != word.size() || std::memcmp(entry.bytes, word.data(), word.size()) != 0) {
      return false;
    }
    ids.insert(ids.end(), entry.ids, entry.ids + entry.num_ids);
    return true;
  }

  void remember(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.size() > kMostBytes || ids.size() > kMostIds) {
      return;
    }
    Entry& entry = entries_[place(word)];
    entry.num_bytes = static_cast<std::uint8_t>(word.size());
    entry.num_ids = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.bytes, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), entry.ids);
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;  ///< 2 MiB
  static constexpr std::size_t kMostBytes = 30;
  static constexpr std::size_t kMostIds = 8;
  struct alignas(64) Entry {  ///< one line of the processor's cache
    std::uint8_t num_bytes = 0;
    std::uint8_t num_ids = 0;
    char bytes[kMostBytes];
    std::int32_t ids[kMostIds];
  };

  static std::size_t place(std::string_view word) {
    return XXH3_64bits(word.data(), word.size()) % kEntries;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace dstrain
