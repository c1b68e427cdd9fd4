// Products with the factors of low-rank adapters, T [R, C] of few ranks R: too thin for a library
// of large products, and bound by how often the wide operand is read.
//
// T comes in panels of kRankPanel columns, f32: panel p is [R][kRankPanel], zero beyond C; so are
// the numbers of ranks.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/transpose.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

// Sums that stay in registers: AVX-512 has 32 of them, the others 16.
constexpr bool kManyRegisters = kLanes == 16;
constexpr int kReducedRows = kManyRegisters ? 4 : 2;
constexpr int kReducedRanks = 4;
constexpr int kWidenedRows = 4;
constexpr int kWidenedVecs = kManyRegisters ? 4 : 2;
constexpr int kOuterRanks = kManyRegisters ? 8 : 4;
constexpr int kOuterVecs = 2;

template <typename T>
DSTRAIN_INLINE void pack_rows(const RankPanel<T>& of, float* panel) {
  for (std::int64_t r = 0; r < of.ranks; ++r) {
    const T* const from = of.t + r * of.stride;
    float* const to = panel + r * kRankPanel;
    for_each_vec(of.columns, [=](std::int64_t c, auto width) {
      store(to + c, load(from + c, width));  // zeros beyond a part
    });
    for (std::int64_t c = (of.columns + kLanes - 1) / kLanes * kLanes; c < kRankPanel; ++c) {
      to[c] = 0.0F;
    }
  }
}

template <typename T>
DSTRAIN_INLINE void pack_columns(const RankPanel<T>& of, float* panel) {
  const T* const t = of.t;
  const std::int64_t ranks = of.ranks;
  const std::int64_t columns = of.columns;
  std::int64_t r = 0;
  for (; r + kLanes <= ranks; r += kLanes) {
    for (std::int64_t c = 0; c < kRankPanel; c += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] = c + lane < columns ? load(t + (c + lane) * ranks + r) : Vec{};
      }
      transpose_square(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        store(panel + (r + lane) * kRankPanel + c, square[lane]);
      }
    }
  }
  for (; r < ranks; ++r) {
    for (std::int64_t c = 0; c < kRankPanel; ++c) {
      panel[r * kRankPanel + c] = c < columns ? to_float(t[c * ranks + r]) : 0.0F;
    }
  }
}

template <typename T>
[[gnu::flatten]] void pack_rank_panel(const RankPanel<T>& of, float* panel) {
  of.transposed ? pack_columns(of, panel) : pack_rows(of, panel);
}

template <typename T>
[[gnu::flatten]] void pack_rank_numbers(
    LowRankUse /*use*/, const T* h, std::int64_t rows, std::int64_t ranks, float* numbers) {
  for_each_vec(rows * ranks,
               [=](std::int64_t i, auto width) { store(numbers + i, load(h + i, width), width); });
}

/// h = scale · x · Tᵀ for kRows rows and kRanks ranks from r0 on.
template <int kRows, int kRanks, typename T>
DSTRAIN_INLINE void reduce_tile(const LowRankRows<T>& of, std::int64_t row0, std::int64_t r0) {
  Vec sums[kRows][kRanks] = {};
  const T* const x = of.wide + row0 * of.stride;
  for (std::int64_t panel = 0; panel < of.columns; panel += kRankPanel) {
    const float* const t = of.panels + panel * of.ranks + r0 * kRankPanel;
    const std::int64_t left = of.columns - panel;
    for_each_vec(left < kRankPanel ? left : kRankPanel, [&](std::int64_t c, auto width) {
      Vec values[kRows];
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        values[row] = load(x + row * of.stride + panel + c, width);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRanks; ++r) {
        const Vec factor = load(t + r * kRankPanel + c);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          sums[row][r] += values[row] * factor;
        }
      }
    });
  }
  for (int row = 0; row < kRows; ++row) {
    for (int r = 0; r < kRanks; ++r) {
      assign(of.numbers_written + (row0 + row) * of.ranks + r0 + r,
             of.scale * sum_lanes(sums[row][r]));
    }
  }
}

template <int kRows, typename T>
DSTRAIN_INLINE void reduce_rows(const LowRankRows<T>& of, std::int64_t row0) {
  std::int64_t r = 0;
  for (; r + kReducedRanks <= of.ranks; r += kReducedRanks) {
    reduce_tile<kRows, kReducedRanks>(of, row0, r);
  }
  for (; r < of.ranks; ++r) {
    reduce_tile<kRows, 1>(of, row0, r);
  }
}

template <typename T>
[[gnu::flatten]] void reduce_to_rank(const LowRankRows<T>& of) {
  std::int64_t row = 0;
  for (; row + kReducedRows <= of.rows; row += kReducedRows) {
    reduce_rows<kReducedRows>(of, row);
  }
  for (; row < of.rows; ++row) {
    reduce_rows<1>(of, row);
  }
}

/// y += h · T for kRows rows and kVecs vectors of columns from `column` on.
template <int kRows, int kVecs, typename T, typename Width>
DSTRAIN_INLINE void widen_tile(const LowRankRows<T>& of,
                               std::int64_t row0,
                               std::int64_t column,
                               Width width) {
  Vec sums[kRows][kVecs] = {};
  const std::int64_t in_panel = column % kRankPanel;
  const float* t = of.panels + (column - in_panel) * of.ranks + in_panel;
  const float* const h = of.numbers + row0 * of.ranks;
  for (std::int64_t r = 0; r < of.ranks; ++r, t += kRankPanel) {
    Vec factors[kVecs];
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      factors[vec] = load(t + vec * kLanes);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Vec number = broadcast(h[row * of.ranks + r]);
#pragma GCC unroll 4
      for (int vec = 0; vec < kVecs; ++vec) {
        sums[row][vec] += number * factors[vec];
      }
    }
  }
  T* const y = of.wide_written + row0 * of.stride + column;
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      T* const at = y + row * of.stride + vec * kLanes;
      store(at, load(at, width) + sums[row][vec], width);
    }
  }
}

template <int kRows, typename T>
DSTRAIN_INLINE void widen_rows(const LowRankRows<T>& of, std::int64_t row0) {
  constexpr std::int64_t kStep = kWidenedVecs * kLanes;
  static_assert(kRankPanel % kStep == 0);
  std::int64_t c = 0;
  for (; c + kStep <= of.columns; c += kStep) {
    widen_tile<kRows, kWidenedVecs>(of, row0, c, Whole{});
  }
  for_each_vec(of.columns - c,
               [&](std::int64_t at, auto width) { widen_tile<kRows, 1>(of, row0, c + at, width); });
}

template <typename T>
[[gnu::flatten]] void add_from_rank(const LowRankRows<T>& of) {
  std::int64_t row = 0;
  for (; row + kWidenedRows <= of.rows; row += kWidenedRows) {
    widen_rows<kWidenedRows>(of, row);
  }
  for (; row < of.rows; ++row) {
    widen_rows<1>(of, row);
  }
}

/// Rows of the wide operand, which stay in a cache while all ranks go over them.
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};
constexpr std::int64_t kRowsAtOnce = 256;

/// sums += hᵀ · x for kRanks ranks from r0 on and kVecs vectors of columns of a panel.
template <int kRanks, int kVecs, typename T, typename Width>
DSTRAIN_INLINE void outer_tile(const LowRankRows<T>& of,
                               RowRange rows,
                               std::int64_t r0,
                               std::int64_t column,
                               Width width,
                               float* panel) {
  float* const to = panel + r0 * kRankPanel + column;
  Vec sums[kRanks][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRanks; ++r) {
#pragma GCC unroll 2
    for (int vec = 0; vec < kVecs; ++vec) {
      sums[r][vec] = load(to + r * kRankPanel + vec * kLanes);
    }
  }
  const T* x = of.wide + rows.begin * of.stride + column;
  const float* h = of.numbers + rows.begin * of.ranks + r0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row, x += of.stride, h += of.ranks) {
    Vec values[kVecs];
#pragma GCC unroll 2
    for (int vec = 0; vec < kVecs; ++vec) {
      values[vec] = load(x + vec * kLanes, width);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRanks; ++r) {
      const Vec number = broadcast(h[r]);
#pragma GCC unroll 2
      for (int vec = 0; vec < kVecs; ++vec) {
        sums[r][vec] += number * values[vec];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRanks; ++r) {
#pragma GCC unroll 2
    for (int vec = 0; vec < kVecs; ++vec) {
      store(to + r * kRankPanel + vec * kLanes, sums[r][vec]);
    }
  }
}

template <int kRanks, typename T>
DSTRAIN_INLINE void outer_ranks(const LowRankRows<T>& of,
                                RowRange rows,
                                std::int64_t r0,
                                float* panel) {
  constexpr std::int64_t kStep = kOuterVecs * kLanes;
  std::int64_t c = 0;
  for (; c + kStep <= of.columns; c += kStep) {
    outer_tile<kRanks, kOuterVecs>(of, rows, r0, c, Whole{}, panel);
  }
  for_each_vec(of.columns - c, [&](std::int64_t at, auto width) {
    outer_tile<kRanks, 1>(of, rows, r0, c + at, width, panel);
  });
}

template <typename T>
[[gnu::flatten]] void rank_gradient(const LowRankRows<T>& of, float* panel) {
  for (std::int64_t i = 0; i < of.ranks * kRankPanel; i += kLanes) {
    store(panel + i, Vec{});
  }
  for (std::int64_t row = 0; row < of.rows; row += kRowsAtOnce) {
    const RowRange rows{row, row + kRowsAtOnce < of.rows ? row + kRowsAtOnce : of.rows};
    std::int64_t r = 0;
    for (; r + kOuterRanks <= of.ranks; r += kOuterRanks) {
      outer_ranks<kOuterRanks>(of, rows, r, panel);
    }
    for (; r < of.ranks; ++r) {
      outer_ranks<1>(of, rows, r, panel);
    }
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->pack_rank_panel = pack_rank_panel<T>;
  loops->pack_rank_numbers = pack_rank_numbers<T>;
  loops->reduce_to_rank = reduce_to_rank<T>;
  loops->add_from_rank = add_from_rank<T>;
  loops->rank_gradient = rank_gradient<T>;
}

}  // namespace

void fill_low_rank(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
