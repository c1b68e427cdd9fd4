// How the matrix products cut a dimension into parts that fit a cache.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dstrain {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

/// Divides `total` into the fewest parts of at most `most`, all of one size but the last; 0 gives
/// no part.
struct Cut {
  Cut(std::int64_t total_size, std::int64_t most, std::int64_t unit) : total(total_size) {
    const std::int64_t fewest = std::max<std::int64_t>(1, ceil_div(total, most));
    size = std::max(unit, round_up(ceil_div(total, fewest), unit));
    parts = ceil_div(total, size);
  }
  [[nodiscard]] std::int64_t begin(std::int64_t part) const { return part * size; }
  [[nodiscard]] std::int64_t size_of_part(std::int64_t part) const {
    return std::min(size, total - part * size);
  }
  std::int64_t total;
  std::int64_t size = 0;
  std::int64_t parts = 0;
};

}  // namespace dstrain
