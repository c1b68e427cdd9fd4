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

/// sums += a · b, of kRows rows of a by kVecs vectors of a panel of columns. Calls beside(term) in
/// each turn.
template <int kRows, int kVecs, typename Beside>
DSTRAIN_INLINE void add_terms(const float* a,
                              std::int64_t row_stride,
                              std::int64_t term_stride,
                              const float* b,
                              std::int64_t terms,
                              Vec (&sums)[kRows][kVecs],
                              Beside&& beside) {
#pragma GCC unroll 2
  for (std::int64_t term = 0; term < terms; ++term) {
    Vec columns[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      columns[v] = load(b + v * kLanes);
    }
#pragma GCC unroll 28
    for (int row = 0; row < kRows; ++row) {
      const Vec factor = broadcast(a[row * row_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        sums[row][v] += factor * columns[v];
      }
    }
    beside(term);
    a += term_stride;
    b += kTileColumns;
  }
}

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
  add_terms<kTileRows, 2>(of.a, 1, kTileRows, of.b, of.terms, sums, [](std::int64_t /*term*/) {});
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

// A tile's columns are the rows of a, and its rows those of b, which are widened first: where there
// are few rows, packing b would take as long as multiplying by it. b is read as one stream, of
// which the next lines are asked for meanwhile; of pieces of several rows prefetchers lose track.
template <int kVecs, typename T>
DSTRAIN_INLINE void multiply_few_rows_by(const FewRowsProduct<T>& of) {
  constexpr int kRows = kTileRows * 2 / kVecs;
  constexpr int kColumns = kVecs * kLanes;
  constexpr std::int64_t kLine = 64 / sizeof(T);  // elements of a cache line
  constexpr std::int64_t kMostPanels = (FewRowsProduct<T>::kMostRows + kColumns - 1) / kColumns;
  alignas(64) float sums[kMostPanels][kRows][kColumns];
  const std::int64_t panels = (of.rows + kColumns - 1) / kColumns;
  const std::int64_t wide_stride = FewRowsProduct<T>::wide_stride(of.terms);
  for (std::int64_t first = 0; first < of.columns; first += kRows) {
    const int count = static_cast<int>(of.columns - first < kRows ? of.columns - first : kRows);
    for (int row = 0; row < count; ++row) {
      const T* const from = of.b + (first + row) * of.terms;
      for_each_vec(of.terms, [&](std::int64_t at, auto width) {
        store(of.wide + row * wide_stride + at, load(from + at, width), width);
      });
    }
    const T* next = of.b + (first + kRows) * of.terms;
    const float* a = of.a;
    for (std::int64_t begin = 0; begin < of.terms; begin += of.chunk_terms) {
      const std::int64_t terms =
          of.terms - begin < of.chunk_terms ? of.terms - begin : of.chunk_terms;
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        Vec tile[kRows][kVecs] = {};
        add_terms<kRows, kVecs>(of.wide + begin, wide_stride, 1, a + panel * of.a_panel_stride,
                                terms, tile, [&](std::int64_t term) {
                                  if (term * kLine < terms * kRows) {
                                    __builtin_prefetch(next + term * kLine);
                                  }
                                });
#pragma GCC unroll 28
        for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            float* const at = sums[panel][row] + v * kLanes;
            if (begin > 0) {
              tile[row][v] += load(at);
            } else if (of.bias != nullptr) {
              tile[row][v] += broadcast(row < count ? of.bias[first + row] : 0.0F);
            }
            store(at, tile[row][v]);
          }
        }
      }
      a += of.a_chunk_stride;
      next += terms * kRows;
    }
    for (std::int64_t row = 0; row < of.rows; ++row) {
      for (int column = 0; column < count; ++column) {
        of.sums[row * of.columns + first + column] = sums[row / kColumns][column][row % kColumns];
      }
    }
  }
}

template <typename T>
[[gnu::flatten]] void multiply_few_rows(const FewRowsProduct<T>& of) {
  if (of.rows <= kLanes) {
    multiply_few_rows_by<1>(of);
  } else {
    multiply_few_rows_by<2>(of);
  }
}

void transpose(
    const float* from, std::int64_t rows, std::int64_t columns, float* to, std::int64_t to_stride) {
  std::int64_t row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    std::int64_t column = 0;
    for (; column + kLanes <= columns; column += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        square[lane] = load(from + (row + lane) * columns + column);
      }
      transpose_square(square);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        store(to + (column + lane) * to_stride + row, square[lane]);
      }
    }
    for (; column < columns; ++column) {
      for (int lane = 0; lane < kLanes; ++lane) {
        to[column * to_stride + row + lane] = from[(row + lane) * columns + column];
      }
    }
  }
  for (; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      to[column * to_stride + row] = from[row * columns + column];
    }
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->pack_rows = pack_rows<T>;
  loops->pack_columns = pack_columns<T>;
  loops->multiply_packed = multiply_packed<T>;
  loops->multiply_few_rows = multiply_few_rows<T>;
}

}  // namespace

void fill_matmul(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
  loops->transpose = transpose;
  loops->tile_rows = kTileRows;
  loops->tile_columns = kTileColumns;
}

}  // namespace dstrain::DSTRAIN_ISA
