// Matrix products in tiles that stay in registers (K. Goto, R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication", 2008): operands are packed as f32, so that a tile reads
// memory in one run, and each element is what it started from plus the sum of its terms in their
// order, wherever its tile is.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/transpose.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

// As many sums as there are registers for, beside two of columns and one of a row.
constexpr int kTileRows = kLanes == 16 ? 14 : kLanes == 8 ? 6 : 4;
constexpr int kTileColumns = 2 * kLanes;

/// Vectors that lie together are packed so many panels at a time: in runs that prefetchers follow.
constexpr int kPanelsAtOnce = 4;

/// Stores the elements of up to kLanes vectors, which may reach beyond the panel's part of a term:
/// what is there is written later.
template <int kPanel, typename T>
DSTRAIN_INLINE void pack_together(const OperandPart<T>& of, std::int64_t first_vector, float* out) {
  const std::int64_t left = of.vectors - first_vector;
  const std::int64_t vectors = left < kPanelsAtOnce * kPanel ? left : kPanelsAtOnce * kPanel;
  for (std::int64_t term = 0; term < of.terms; ++term) {
    const T* const from = of.from + term * of.stride + first_vector;
    for (std::int64_t panel = 0; panel * kPanel < vectors; ++panel) {
      float* const to = out + panel * of.panel_stride + term * kPanel;
#pragma GCC unroll 4
      for (int v = 0; v < kPanel; v += kLanes) {
        const std::int64_t begin = panel * kPanel + v;
        const std::int64_t there = left - begin;
        if (there >= kLanes) {
          store(to + v, load(from + begin));
        } else {
          store(to + v, load(from + begin, Partial{static_cast<int>(there < 0 ? 0 : there), 0.0F}));
        }
      }
    }
  }
}

template <int kPanel, typename T>
DSTRAIN_INLINE void pack_apart(const OperandPart<T>& of, std::int64_t first_vector, float* out) {
  const std::int64_t left = of.vectors - first_vector;
  const T* const from = of.from + first_vector * of.stride;
  for (std::int64_t term = 0; term < of.terms; term += kLanes) {
    const std::int64_t terms = of.terms - term < kLanes ? of.terms - term : kLanes;
#pragma GCC unroll 4
    for (int v = 0; v < kPanel; v += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        const T* const at = from + (v + lane) * of.stride + term;
        if (v + lane >= kPanel || v + lane >= left) {
          square[lane] = Vec{};
        } else if (terms == kLanes) {
          square[lane] = load(at);
        } else {
          square[lane] = load(at, Partial{static_cast<int>(terms), 0.0F});
        }
      }
      transpose_square(square);
      for (int lane = 0; lane < terms; ++lane) {
        store(out + (term + lane) * kPanel + v, square[lane]);
      }
    }
  }
}

template <int kPanel, typename T>
DSTRAIN_INLINE void pack(const OperandPart<T>& of, float* out) {
  for (std::int64_t vector = 0; vector < of.vectors;) {
    if (of.vectors_together) {
      pack_together<kPanel>(of, vector, out);
      vector += kPanelsAtOnce * kPanel;
      out += kPanelsAtOnce * of.panel_stride;
    } else {
      pack_apart<kPanel>(of, vector, out);
      vector += kPanel;
      out += of.panel_stride;
    }
  }
}

template <typename T>
[[gnu::flatten]] void pack_rows(const OperandPart<T>& of, float* out) {
  pack<kTileRows>(of, out);
}

template <typename T>
[[gnu::flatten]] void pack_columns(const OperandPart<T>& of, float* out) {
  pack<kTileColumns>(of, out);
}

/// c = start + a · b, of one tile.
template <typename T>
struct Tile {
  std::int64_t terms;
  const float* a;
  const float* b;
  const float* start;
  std::int64_t start_stride;
  T* c;
  std::int64_t c_stride;
};

template <typename T>
DSTRAIN_INLINE void multiply(const Tile<T>& of) {
  Vec sums[kTileRows][2] = {};
  if (of.start != nullptr) {  // it comes while the sums are made
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      __builtin_prefetch(of.start + row * of.start_stride);
      __builtin_prefetch(of.start + row * of.start_stride + kTileColumns - 1);
    }
  }
  const float* a = of.a;
  const float* b = of.b;
#pragma GCC unroll 2
  for (std::int64_t term = 0; term < of.terms; ++term) {
    const Vec b0 = load(b);
    const Vec b1 = load(b + kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      const Vec factor = broadcast(a[row]);
      sums[row][0] += factor * b0;
      sums[row][1] += factor * b1;
    }
    a += kTileRows;
    b += kTileColumns;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
    if (of.start != nullptr) {
      sums[row][0] += load(of.start + row * of.start_stride);
      sums[row][1] += load(of.start + row * of.start_stride + kLanes);
    }
    store(of.c + row * of.c_stride, sums[row][0]);
    store(of.c + row * of.c_stride + kLanes, sums[row][1]);
  }
}

/// The same of a tile of which only some rows and columns exist.
template <typename T>
DSTRAIN_INLINE void multiply_edge(const Tile<T>& of, std::int64_t rows, std::int64_t columns) {
  float whole[kTileRows * kTileColumns] = {};
  if (of.start != nullptr) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        whole[row * kTileColumns + column] = of.start[row * of.start_stride + column];
      }
    }
  }
  multiply(Tile<float>{of.terms, of.a, of.b, whole, kTileColumns, whole, kTileColumns});
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      assign(of.c + row * of.c_stride + column, whole[row * kTileColumns + column]);
    }
  }
}

// A panel of columns stays in the first cache while all rows are multiplied by it.
template <typename T>
[[gnu::flatten]] void multiply_packed(const PackedProduct<T>& of) {
  for (std::int64_t column = 0; column < of.columns; column += kTileColumns) {
    for (std::int64_t row = 0; row < of.rows; row += kTileRows) {
      const Tile<T> tile{
          .terms = of.terms,
          .a = of.a + row / kTileRows * of.a_panel_stride,
          .b = of.b + column / kTileColumns * of.b_panel_stride,
          .start = of.start == nullptr ? nullptr : of.start + row * of.start_stride + column,
          .start_stride = of.start_stride,
          .c = of.c + row * of.c_stride + column,
          .c_stride = of.c_stride};
      const std::int64_t rows = of.rows - row < kTileRows ? of.rows - row : kTileRows;
      const std::int64_t columns =
          of.columns - column < kTileColumns ? of.columns - column : kTileColumns;
      if (rows == kTileRows && columns == kTileColumns) {
        multiply(tile);
      } else {
        multiply_edge(tile, rows, columns);
      }
    }
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->pack_rows = pack_rows<T>;
  loops->pack_columns = pack_columns<T>;
  loops->multiply_packed = multiply_packed<T>;
}

}  // namespace

void fill_matmul(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
  loops->tile_rows = kTileRows;
  loops->tile_columns = kTileColumns;
}

}  // namespace dstrain::DSTRAIN_ISA
