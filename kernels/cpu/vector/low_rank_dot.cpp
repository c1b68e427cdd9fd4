// The products of low_rank.cpp in bf16 by AVX-512's dot products of pairs (vdpbf16ps), at twice the
// rate of f32 and with half the bytes. What is summed over lies in pairs, 32 bits each:
//
//   reduce    over columns: a panel is [R][kRankPanel], as rows are
//   add       over ranks: a panel is [R/2][kRankPanel] pairs, numbers are [N][R/2]
//   gradient  over rows: numbers are [N/2][R] pairs, and two rows of x are interleaved as they come
//
// An odd last one is paired with zero.
#include <immintrin.h>

#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/transpose.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

constexpr std::int64_t kPairs = 2 * kLanes;  // elements of a register
constexpr int kReducedRows = 4;
constexpr int kReducedRanks = 4;
constexpr int kWidenedRows = 4;
constexpr int kWidenedVecs = 4;
constexpr int kOuterRanks = 8;
constexpr std::int64_t kRowsAtOnce = 256;  // of gradients, which stay in a cache for all ranks
static_assert(kRankPanel == kWidenedVecs * kLanes && kRankPanel % kPairs == 0);
static_assert(kRowsAtOnce % 2 == 0);

using Pair = std::uint32_t;

DSTRAIN_INLINE Pair pair_of(BF16 first, BF16 second) {
  return Pair{first.bits} | Pair{second.bits} << 16;
}
/// The same pair in every lane.
DSTRAIN_INLINE __m512bh all_of(Pair pair) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
}
DSTRAIN_INLINE __m512bh pairs_at(const void* at) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
}
/// The first `count` elements, then zeros.
DSTRAIN_INLINE __m512i elements_at(const BF16* at, std::int64_t count) {
  const __mmask32 which = count >= kPairs ? ~__mmask32{0}
                          : count <= 0    ? __mmask32{0}
                                          : (__mmask32{1} << count) - 1;
  return _mm512_maskz_loadu_epi16(which, at);
}
DSTRAIN_INLINE Vec words_at(const BF16* at, std::int64_t count) {
  const auto which = static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_epi32(which, at));
}

// ---- packing ------------------------------------------------------------------------------------

DSTRAIN_INLINE void pack_rows_to_reduce(const RankPanel<BF16>& of, BF16* panel) {
  for (std::int64_t r = 0; r < of.ranks; ++r) {
    for (std::int64_t c = 0; c < kRankPanel; c += kPairs) {
      _mm512_storeu_si512(panel + r * kRankPanel + c,
                          elements_at(of.t + r * of.stride + c, of.columns - c));
    }
  }
}

DSTRAIN_INLINE void pack_columns_to_reduce(const RankPanel<BF16>& of, BF16* panel) {
  std::int64_t r = 0;
  for (; r + kLanes <= of.ranks; r += kLanes) {
    for (std::int64_t c = 0; c < kRankPanel; c += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] = c + lane < of.columns ? load(of.t + (c + lane) * of.ranks + r) : Vec{};
      }
      transpose_square(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        store(panel + (r + lane) * kRankPanel + c, square[lane]);
      }
    }
  }
  for (; r < of.ranks; ++r) {
    for (std::int64_t c = 0; c < kRankPanel; ++c) {
      panel[r * kRankPanel + c] = c < of.columns ? of.t[c * of.ranks + r] : BF16{};
    }
  }
}

DSTRAIN_INLINE void pack_rows_to_add(const RankPanel<BF16>& of, Pair* panel) {
  for (std::int64_t r = 0; r < of.ranks; r += 2) {
    const BF16* const first = of.t + r * of.stride;
    const BF16* const second = r + 1 < of.ranks ? first + of.stride : nullptr;
    for (std::int64_t c = 0; c < kRankPanel; ++c) {
      const bool is_there = c < of.columns;
      panel[r / 2 * kRankPanel + c] =
          pair_of(is_there ? first[c] : BF16{}, is_there && second != nullptr ? second[c] : BF16{});
    }
  }
}

/// A pair of ranks is 32 bits of a row of Tᵀ, where these are even: such words are transposed.
DSTRAIN_INLINE void pack_columns_to_add(const RankPanel<BF16>& of, Pair* panel) {
  if (of.ranks % 2 != 0) {
    for (std::int64_t r = 0; r < of.ranks; r += 2) {
      for (std::int64_t c = 0; c < kRankPanel; ++c) {
        const BF16* const row = of.t + c * of.ranks;
        const bool is_there = c < of.columns;
        panel[r / 2 * kRankPanel + c] =
            pair_of(is_there ? row[r] : BF16{}, is_there && r + 1 < of.ranks ? row[r + 1] : BF16{});
      }
    }
    return;
  }
  for (std::int64_t r = 0; r < of.ranks; r += kPairs) {
    const std::int64_t words = (of.ranks - r) / 2;
    for (std::int64_t c = 0; c < kRankPanel; c += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] =
            c + lane < of.columns ? words_at(of.t + (c + lane) * of.ranks + r, words) : Vec{};
      }
      transpose_square(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        if (lane < words) {
          _mm512_storeu_ps(panel + (r / 2 + lane) * kRankPanel + c,
                           reinterpret_cast<__m512>(square[lane]));
        }
      }
    }
  }
}

void pack_panel_in_pairs(const RankPanel<BF16>& of, float* panel) {
  if (of.use == LowRankUse::kReduce) {
    auto* const to = reinterpret_cast<BF16*>(panel);
    of.transposed ? pack_columns_to_reduce(of, to) : pack_rows_to_reduce(of, to);
  } else {
    auto* const to = reinterpret_cast<Pair*>(panel);
    of.transposed ? pack_columns_to_add(of, to) : pack_rows_to_add(of, to);
  }
}

void pack_numbers_in_pairs(
    LowRankUse use, const BF16* h, std::int64_t rows, std::int64_t ranks, float* numbers) {
  auto* const to = reinterpret_cast<Pair*>(numbers);
  if (use == LowRankUse::kAdd) {
    const std::int64_t pairs = (ranks + 1) / 2;
    for (std::int64_t row = 0; row < rows; ++row) {
      const BF16* const from = h + row * ranks;
      for (std::int64_t r = 0; r < ranks; r += 2) {
        to[row * pairs + r / 2] = pair_of(from[r], r + 1 < ranks ? from[r + 1] : BF16{});
      }
    }
    return;
  }
  for (std::int64_t row = 0; row < rows; row += 2) {
    const BF16* const first = h + row * ranks;
    const BF16* const second = row + 1 < rows ? first + ranks : nullptr;
    for (std::int64_t r = 0; r < ranks; ++r) {
      to[row / 2 * ranks + r] = pair_of(first[r], second == nullptr ? BF16{} : second[r]);
    }
  }
}

// ---- products -----------------------------------------------------------------------------------

template <int kRows, int kRanks>
DSTRAIN_INLINE void reduce_tile(const LowRankRows<BF16>& of, std::int64_t row0, std::int64_t r0) {
  __m512 sums[kRows][kRanks] = {};
  const BF16* const x = of.wide + row0 * of.stride;
  for (std::int64_t column = 0; column < of.columns; column += kPairs) {
    const std::int64_t in_panel = column % kRankPanel;
    const BF16* const t =
        reinterpret_cast<const BF16*>(of.panels + (column - in_panel) * of.ranks) +
        r0 * kRankPanel + in_panel;
    __m512bh values[kRows];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      values[row] = reinterpret_cast<__m512bh>(
          elements_at(x + row * of.stride + column, of.columns - column));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRanks; ++r) {
      const __m512bh factor = pairs_at(t + r * kRankPanel);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        sums[row][r] = _mm512_dpbf16_ps(sums[row][r], values[row], factor);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int r = 0; r < kRanks; ++r) {
      assign(of.numbers_written + (row0 + row) * of.ranks + r0 + r,
             of.scale * sum_lanes(reinterpret_cast<Vec>(sums[row][r])));
    }
  }
}

template <int kRows>
DSTRAIN_INLINE void reduce_rows(const LowRankRows<BF16>& of, std::int64_t row0) {
  std::int64_t r = 0;
  for (; r + kReducedRanks <= of.ranks; r += kReducedRanks) {
    reduce_tile<kRows, kReducedRanks>(of, row0, r);
  }
  for (; r < of.ranks; ++r) {
    reduce_tile<kRows, 1>(of, row0, r);
  }
}

void reduce_in_pairs(const LowRankRows<BF16>& of) {
  std::int64_t row = 0;
  for (; row + kReducedRows <= of.rows; row += kReducedRows) {
    reduce_rows<kReducedRows>(of, row);
  }
  for (; row < of.rows; ++row) {
    reduce_rows<1>(of, row);
  }
}

/// The columns of one panel.
template <int kRows>
DSTRAIN_INLINE void add_to_panel(const LowRankRows<BF16>& of,
                                 std::int64_t row0,
                                 std::int64_t column) {
  __m512 sums[kRows][kWidenedVecs] = {};
  const std::int64_t pairs = (of.ranks + 1) / 2;
  const float* t = of.panels + column * of.ranks;
  const Pair* const h = reinterpret_cast<const Pair*>(of.numbers) + row0 * pairs;
  for (std::int64_t pair = 0; pair < pairs; ++pair, t += kRankPanel) {
    __m512bh factors[kWidenedVecs];
#pragma GCC unroll 4
    for (int vec = 0; vec < kWidenedVecs; ++vec) {
      factors[vec] = pairs_at(t + vec * kLanes);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const __m512bh number = all_of(h[row * pairs + pair]);
#pragma GCC unroll 4
      for (int vec = 0; vec < kWidenedVecs; ++vec) {
        sums[row][vec] = _mm512_dpbf16_ps(sums[row][vec], number, factors[vec]);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vec = 0; vec < kWidenedVecs; ++vec) {
      BF16* const y = of.wide_written + (row0 + row) * of.stride + column + vec * kLanes;
      const std::int64_t left = of.columns - column - vec * kLanes;
      const Vec sum = reinterpret_cast<Vec>(sums[row][vec]);
      if (left >= kLanes) {
        store(y, load(y) + sum);
      } else if (left > 0) {
        const Partial width{static_cast<int>(left), 0.0F};
        store(y, load(y, width) + sum, width);
      }
    }
  }
}

void add_in_pairs(const LowRankRows<BF16>& of) {
  for (std::int64_t row = 0; row < of.rows;) {
    const bool many = row + kWidenedRows <= of.rows;
    for (std::int64_t column = 0; column < of.columns; column += kRankPanel) {
      many ? add_to_panel<kWidenedRows>(of, row, column) : add_to_panel<1>(of, row, column);
    }
    row += many ? kWidenedRows : 1;
  }
}

// Unpacking two rows goes by 128 bits: columns 0-3, 8-11, 16-19 and 24-27 of 32 come into one
// register, the others into another. Sums are put in order where they are kept.
DSTRAIN_INLINE void add_in_order(float* to, __m512 low, __m512 high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  store(to, load(to) + reinterpret_cast<Vec>(_mm512_permutex2var_ps(low, first, high)));
  store(to + kLanes,
        load(to + kLanes) + reinterpret_cast<Vec>(_mm512_permutex2var_ps(low, second, high)));
}

template <int kRanks>
DSTRAIN_INLINE void add_outer(const LowRankRows<BF16>& of,
                              std::int64_t begin,
                              std::int64_t end,
                              std::int64_t r0,
                              std::int64_t column,
                              float* panel) {
  const std::int64_t left = of.columns - column;
  __m512 sums[kRanks][2] = {};
  const Pair* h = reinterpret_cast<const Pair*>(of.numbers) + begin / 2 * of.ranks + r0;
  for (std::int64_t row = begin; row < end; row += 2, h += of.ranks) {
    const BF16* const x = of.wide + row * of.stride + column;
    const __m512i first = elements_at(x, left);
    const __m512i second = row + 1 < end ? elements_at(x + of.stride, left) : __m512i{};
    const auto low =
        reinterpret_cast<__m512bh>(_mm512_maskz_unpacklo_epi16(~__mmask32{0}, first, second));
    const auto high =
        reinterpret_cast<__m512bh>(_mm512_maskz_unpackhi_epi16(~__mmask32{0}, first, second));
#pragma GCC unroll 8
    for (int r = 0; r < kRanks; ++r) {
      const __m512bh number = all_of(h[r]);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], number, low);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], number, high);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRanks; ++r) {
    add_in_order(panel + (r0 + r) * kRankPanel + column, sums[r][0], sums[r][1]);
  }
}

void gradient_in_pairs(const LowRankRows<BF16>& of, float* panel) {
  for (std::int64_t i = 0; i < of.ranks * kRankPanel; i += kLanes) {
    store(panel + i, Vec{});
  }
  for (std::int64_t row = 0; row < of.rows; row += kRowsAtOnce) {
    const std::int64_t end = row + kRowsAtOnce < of.rows ? row + kRowsAtOnce : of.rows;
    for (std::int64_t column = 0; column < of.columns; column += kPairs) {
      std::int64_t r = 0;
      for (; r + kOuterRanks <= of.ranks; r += kOuterRanks) {
        add_outer<kOuterRanks>(of, row, end, r, column, panel);
      }
      for (; r < of.ranks; ++r) {
        add_outer<1>(of, row, end, r, column, panel);
      }
    }
  }
}

}  // namespace

void fill_low_rank_in_pairs(VectorLoops* loops) {
  loops->bf16.pack_rank_panel = pack_panel_in_pairs;
  loops->bf16.pack_rank_numbers = pack_numbers_in_pairs;
  loops->bf16.reduce_to_rank = reduce_in_pairs;
  loops->bf16.add_from_rank = add_in_pairs;
  loops->bf16.rank_gradient = gradient_in_pairs;
}

}  // namespace dstrain::DSTRAIN_ISA
