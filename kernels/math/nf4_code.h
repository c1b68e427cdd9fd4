// Nf4Code: a matrix in 4 bits a number, as bitsandbytes stores it ("nf4" with double quantisation):
// QLoRA, Dettmers et al. 2023, §3.
//
// Every 64 numbers of its row-major order are a block. A number is one of 16 levels, the nearest,
// times the block's largest magnitude; levels: appendix E there, quantiles of a normal
// distribution. The largest magnitudes, less their mean over the matrix, are coded in 8 bits in
// turn, 256 of them a block: one of 256 "dynamic" levels (Dettmers et al. 2022, §2.1), times the
// block's largest.
//
//   x = level[q] · (dynamic[c] · scale + mean)        0.516 bytes a number
//
// Where ranks have parts of a matrix, the code is that of the whole, so that all layouts compute
// with the same numbers: a part has its own q and c, and the scales of all of it.
//
//   | q: two a byte, the first in the high half | c: a byte a block | scales, f32 | mean, f32 |
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct Nf4Code {
  static constexpr std::int64_t kBlock = 64;
  static constexpr std::int64_t kScaleBlock = 256;  ///< of largest magnitudes
  static constexpr std::int64_t kMultiple = 64;     ///< of bytes, that a coded matrix takes

  std::int64_t rows = 0;     ///< of the part
  std::int64_t columns = 0;  ///< likewise; a multiple of kBlock, as all_columns
  std::int64_t first_row = 0;
  std::int64_t first_column = 0;
  std::int64_t all_rows = 0;
  std::int64_t all_columns = 0;

  DSTRAIN_HD constexpr std::int64_t numel() const { return rows * columns; }
  DSTRAIN_HD constexpr std::int64_t blocks_in_row() const { return columns / kBlock; }
  /// The number that a block of the part has in the whole matrix.
  DSTRAIN_HD constexpr std::int64_t block_of(std::int64_t row, std::int64_t block) const {
    return ((first_row + row) * all_columns + first_column) / kBlock + block;
  }
  DSTRAIN_HD constexpr std::int64_t scales() const {
    return (all_rows * all_columns / kBlock + kScaleBlock - 1) / kScaleBlock;
  }
  // The first byte of each:
  DSTRAIN_HD constexpr std::int64_t magnitudes_at() const { return numel() / 2; }
  DSTRAIN_HD constexpr std::int64_t scales_at() const {
    return rounded_up(magnitudes_at() + numel() / kBlock, 4);
  }
  DSTRAIN_HD constexpr std::int64_t mean_at() const { return scales_at() + 4 * scales(); }
  DSTRAIN_HD constexpr std::int64_t bytes() const { return rounded_up(mean_at() + 4, kMultiple); }

  friend constexpr bool operator==(const Nf4Code&, const Nf4Code&) = default;

 private:
  DSTRAIN_HD static constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }
};

/// Levels in rising order. A member array, which device code may index.
template <int kCount>
struct Levels {
  float of[kCount];
};

inline constexpr Levels<16> kNf4Levels = {
    {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
     -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
     0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
     0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}};

/// 0, 1, and for each exponent e from -6 to 0 the means of the ends of 2^(e + 6)
/// equal parts of [0.1, 1], times ±10^e. To the bit what bitsandbytes computes, whose ends are
/// rounded to f32 once each.
constexpr Levels<256> dynamic_levels() {
  constexpr float kFirst = 0.1F;
  constexpr float kPowers[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  Levels<256> levels{};
  int count = 0;
  for (int e = 0; e < 7; ++e) {
    const int parts = 1 << e;
    const float step = (1.0F - kFirst) / static_cast<float>(parts);
    const auto end = [&](int i) {
      // The first half of the ends is counted from the front, the others from the back.
      return static_cast<float>(i < (parts + 1) / 2
                                    ? static_cast<double>(kFirst) + static_cast<double>(step) * i
                                    : 1.0 - static_cast<double>(step) * (parts - i));
    };
    for (int i = 0; i < parts; ++i) {
      const float level = kPowers[e] * ((end(i) + end(i + 1)) / 2.0F);
      levels.of[count++] = level;
      levels.of[count++] = -level;
    }
  }
  levels.of[count++] = 0.0F;
  levels.of[count++] = 1.0F;
  for (int i = 1; i < count; ++i) {
    const float level = levels.of[i];
    int at = i;
    for (; at > 0 && levels.of[at - 1] > level; --at) {
      levels.of[at] = levels.of[at - 1];
    }
    levels.of[at] = level;
  }
  return levels;
}

}  // namespace dstrain
