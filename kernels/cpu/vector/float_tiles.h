// FloatTiles: f32 operands for flash_attention.h. Everything is widened when it is packed, and
// tiles are multiplied by a register-blocked kernel (4 rows × 2 or 4 vectors of sums).
#pragma once

#include "kernels/cpu/vector/carver.h"
#include "kernels/cpu/vector/transpose.h"

namespace dstrain::DSTRAIN_ISA {

constexpr int kBlockRows = 4;
constexpr int kBlockVecs = kLanes == 16 ? 4 : 2;

/// c[kRows][kVecs·kLanes] (+)= a · b.
template <int kRows, int kVecs>
DSTRAIN_INLINE void multiply_block(const float* a,
                                   std::int64_t lda,
                                   const float* b,
                                   std::int64_t ldb,
                                   float* c,
                                   std::int64_t ldc,
                                   std::int64_t inner,
                                   bool add) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      sums[row][vec] = add ? load(c + row * ldc + vec * kLanes) : Vec{};
    }
  }
  for (std::int64_t k = 0; k < inner; ++k) {
    Vec right[kVecs];
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      right[vec] = load(b + k * ldb + vec * kLanes);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const float left = a[row * lda + k];
#pragma GCC unroll 4
      for (int vec = 0; vec < kVecs; ++vec) {
        sums[row][vec] += left * right[vec];
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      store(c + row * ldc + vec * kLanes, sums[row][vec]);
    }
  }
}

template <int kVecs>
DSTRAIN_INLINE void multiply_columns(const float* a,
                                     std::int64_t lda,
                                     const float* b,
                                     std::int64_t ldb,
                                     float* c,
                                     std::int64_t ldc,
                                     std::int64_t rows,
                                     std::int64_t inner,
                                     bool add) {
  std::int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) {
    multiply_block<kBlockRows, kVecs>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, inner, add);
  }
  for (; row < rows; ++row) {
    multiply_block<1, kVecs>(a + row * lda, lda, b, ldb, c + row * ldc, ldc, inner, add);
  }
}

[[gnu::noinline]] inline void multiply_tiles(const float* a,
                                             std::int64_t lda,
                                             const float* b,
                                             std::int64_t ldb,
                                             float* c,
                                             std::int64_t ldc,
                                             std::int64_t rows,
                                             std::int64_t columns,
                                             std::int64_t inner,
                                             bool add) {
  std::int64_t column = 0;
  for (; column + kBlockVecs * kLanes <= columns; column += kBlockVecs * kLanes) {
    multiply_columns<kBlockVecs>(a, lda, b + column, ldb, c + column, ldc, rows, inner, add);
  }
  for (; column < columns; column += kLanes) {
    multiply_columns<1>(a, lda, b + column, ldb, c + column, ldc, rows, inner, add);
  }
}

struct FloatTiles {
  using Element = float;

  DSTRAIN_INLINE static std::int64_t padded(std::int64_t depth) {
    return (depth + kLanes - 1) / kLanes * kLanes;
  }
  DSTRAIN_INLINE static const float* column(const float* right, std::int64_t index) {
    return right + index;
  }
  template <typename T>
  DSTRAIN_INLINE static void rows_left(
      const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* packed) {
    pack_rows(x, stride, rows, depth, depth, packed);
  }
  template <typename T>
  DSTRAIN_INLINE static void rows_right(
      const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* packed) {
    pack_rows(x, stride, rows, depth, padded(depth), packed);
  }
  template <typename T>
  DSTRAIN_INLINE static void columns_left(
      const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* packed) {
    columns_of(x, stride, rows, depth, packed);
  }
  template <typename T>
  DSTRAIN_INLINE static void columns_right(
      const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* packed) {
    columns_of(x, stride, rows, depth, packed);
  }
  /// A tile of f32 is an operand as it is, on either side.
  DSTRAIN_INLINE static float* tile_operand(float* tile, Carver& /*carver*/) { return tile; }
  DSTRAIN_INLINE static void put_left(
      float* tile, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    store(tile + key * kTile + query, even);
    store(tile + (key + 1) * kTile + query, odd);
  }
  DSTRAIN_INLINE static void put_right(
      float* tile, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    put_left(tile, key, query, even, odd);
  }
  DSTRAIN_INLINE static void put_both(
      float* tile, float* /*same*/, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    put_left(tile, key, query, even, odd);
  }
  DSTRAIN_INLINE static void multiply(const float* a,
                                      std::int64_t lda,
                                      const float* b,
                                      std::int64_t ldb,
                                      float* c,
                                      std::int64_t ldc,
                                      std::int64_t rows,
                                      std::int64_t columns,
                                      std::int64_t inner,
                                      bool add) {
    multiply_tiles(a, lda, b, ldb, c, ldc, rows, columns, inner, add);
  }

 private:
  /// packed[kTile][row_length] = x, and zero outside.
  template <typename T>
  DSTRAIN_INLINE static void pack_rows(const T* x,
                                       std::int64_t stride,
                                       std::int64_t rows,
                                       std::int64_t depth,
                                       std::int64_t row_length,
                                       float* packed) {
    for (std::int64_t row = 0; row < kTile; ++row) {
      const T* from = x + row * stride;
      float* to = packed + row * row_length;
      if (row < rows) {
        for_each_vec(depth, [=](std::int64_t d, auto width) {
          store(to + d, load(from + d, width), width);
        });
      }
      for (std::int64_t d = row < rows ? depth : 0; d < row_length; ++d) {
        to[d] = 0.0F;
      }
    }
  }
};

}  // namespace dstrain::DSTRAIN_ISA
