// Transposition between a tile of tensor rows (positions) and its columns (positions side by
// side in a vector), kLanes × kLanes elements at a time in registers. What takes a whole tile is
// not inlined: its callers are many, and its code, unrolled, is long to compile.
#pragma once

#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {

constexpr std::int64_t kTile = kAttentionTile;

/// One butterfly: exchanges the off-diagonal kStep × kStep squares of every pair of rows.
template <int kStep, int... kLane>
DSTRAIN_INLINE void exchange_squares(Vec* rows,
                                     std::integer_sequence<int, kLane...> /*all lanes*/) {
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row) {
    if ((row & kStep) == 0) {
      const Vec a = rows[row];
      const Vec b = rows[row + kStep];
      rows[row] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
      rows[row + kStep] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
    }
  }
}
template <int kStep>
DSTRAIN_INLINE void exchange_squares(Vec* rows) {
  exchange_squares<kStep>(rows, std::make_integer_sequence<int, kLanes>{});
}

/// rows[r][c] ↔ rows[c][r].
DSTRAIN_INLINE void transpose_square(Vec* rows) {
  exchange_squares<1>(rows);
  exchange_squares<2>(rows);
  if constexpr (kLanes >= 8) {
    exchange_squares<4>(rows);
  }
  if constexpr (kLanes >= 16) {
    exchange_squares<8>(rows);
  }
}

/// columns[d][r] = x[r][d] for kTile positions, of which the first `rows` exist; the others are 0.
template <typename T>
[[gnu::noinline]] void columns_of(
    const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* columns) {
  for (std::int64_t d = 0; d < depth; d += kLanes) {
    const std::int64_t count = depth - d < kLanes ? depth - d : kLanes;
    for (std::int64_t r = 0; r < kTile; r += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        const T* from = x + (r + lane) * stride + d;
        if (r + lane >= rows) {
          square[lane] = Vec{};
        } else if (count == kLanes) {
          square[lane] = load(from);
        } else {
          square[lane] = load(from, Partial{static_cast<int>(count), 0.0F});
        }
      }
      transpose_square(square);
      for (int lane = 0; lane < count; ++lane) {
        store(columns + (d + lane) * kTile + r, square[lane]);
      }
    }
  }
}

/// x[r][d] = columns[d][r] · factors[r], for the first `rows` positions.
template <typename T>
[[gnu::noinline]] void rows_of(const float* columns,
                               const float* factors,
                               std::int64_t rows,
                               std::int64_t depth,
                               T* x,
                               std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    const Vec factor = load(factors + r);
    for (std::int64_t d = 0; d < depth; d += kLanes) {
      const std::int64_t count = depth - d < kLanes ? depth - d : kLanes;
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] = lane < count ? load(columns + (d + lane) * kTile + r) * factor : Vec{};
      }
      transpose_square(square);
      for (int lane = 0; lane < kLanes && r + lane < rows; ++lane) {
        T* to = x + (r + lane) * stride + d;
        if (count == kLanes) {
          store(to, square[lane]);
        } else {
          store(to, square[lane], Partial{static_cast<int>(count), 0.0F});
        }
      }
    }
  }
}

}  // namespace dstrain::DSTRAIN_ISA
