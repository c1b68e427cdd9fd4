// Checks that all ids of a run of tokens are inside the vocabulary, in one pass at memory speed, in
// parallel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace dstrain {

inline constexpr std::int64_t kAllInRange = -1;

/// Whether the type can hold an id outside [0, vocab_size) at all.
template <typename T>
constexpr bool can_be_out_of_range(std::int64_t vocab_size) {
  return std::is_signed_v<T> || static_cast<std::uint64_t>(vocab_size) <=
                                    static_cast<std::uint64_t>(std::numeric_limits<T>::max());
}

/// Index of the first id outside [0, vocab_size), or kAllInRange.
template <typename T>
std::int64_t first_out_of_range(std::span<const T> ids, std::int64_t vocab_size) {
  // Seen as unsigned, a negative id lies above the largest positive one, hence above `limit`.
  using Unsigned = std::make_unsigned_t<T>;
  constexpr std::size_t kBlock = 8192;
  if (!can_be_out_of_range<T>(vocab_size)) {
    return kAllInRange;
  }
  const std::uint64_t limit =
      std::min(static_cast<std::uint64_t>(vocab_size),
               static_cast<std::uint64_t>(std::numeric_limits<T>::max()) + 1);
  for (std::size_t begin = 0; begin < ids.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, ids.size());
    Unsigned largest = 0;
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, static_cast<Unsigned>(ids[i]));
    }
    if (largest < limit) {
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (static_cast<Unsigned>(ids[i]) >= limit) {
        return static_cast<std::int64_t>(i);
      }
    }
  }
  return kAllInRange;
}

/// The same by `num_threads` threads; the answer is the first one whatever their number.
template <typename T>
std::int64_t first_out_of_range_parallel(std::span<const T> ids,
                                         std::int64_t vocab_size,
                                         int num_threads) {
  constexpr std::size_t kPiece = (std::size_t{4} << 20) / sizeof(T);
  const std::size_t num_pieces = (ids.size() + kPiece - 1) / kPiece;
  if (!can_be_out_of_range<T>(vocab_size) || num_pieces <= 1 || num_threads <= 1) {
    return first_out_of_range(ids, vocab_size);
  }
  std::atomic<std::size_t> next_piece{0};
  std::atomic<std::int64_t> first{std::numeric_limits<std::int64_t>::max()};
  const auto work = [&] {
    for (std::size_t piece = next_piece++; piece < num_pieces; piece = next_piece++) {
      const std::size_t begin = piece * kPiece;
      if (static_cast<std::int64_t>(begin) >= first.load()) {
        return;  // pieces are handed out in order: an earlier one has it already
      }
      const std::int64_t found =
          first_out_of_range(ids.subspan(begin, std::min(kPiece, ids.size() - begin)), vocab_size);
      if (found == kAllInRange) {
        continue;
      }
      const std::int64_t here = static_cast<std::int64_t>(begin) + found;
      std::int64_t before = first.load();
      while (here < before && !first.compare_exchange_weak(before, here)) {
      }
    }
  };
  std::vector<std::jthread> helpers;
  const auto wanted = std::min(static_cast<std::size_t>(num_threads), num_pieces);
  for (std::size_t i = 1; i < wanted; ++i) {
    helpers.emplace_back(work);
  }
  work();
  helpers.clear();  // joins
  return first == std::numeric_limits<std::int64_t>::max() ? kAllInRange : first.load();
}

}  // namespace dstrain
