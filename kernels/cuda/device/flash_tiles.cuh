// Tiles in shared memory, fragments of tensor_core.cuh read from them, and products of both.
//
// A block has four warps. A warp has kRowTiles · 16 rows of the block's own tile, and goes through
// tiles that pass, of kPassing rows, which all warps read. Two of those are in shared memory, so
// that one is copied while the other is used.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace dstrain::cuda {

constexpr int kTileWarps = 4;
constexpr int kTileThreads = 32 * kTileWarps;

/// The number of elements from a row of a tile to the next: kDepth, a head's columns rounded up to
/// 16, and 16 bytes, with which eight neighbouring rows lie in different banks for every kDepth
/// (72, 88, 104 and 136 are odd multiples of 8). So nothing need be swizzled.
template <int kDepth>
constexpr int kStride = kDepth + 8;

/// Begins to copy the rows [0, rows) of a matrix; zeros behind them and behind `columns`.
template <int kDepth, int kRows, typename T>
__device__ void copy_tile(T* tile, const T* from, std::int64_t stride, int rows, int columns) {
  constexpr int kPerCopy = 8;
  constexpr int kCopies = kDepth / kPerCopy;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kCopies; i += kTileThreads) {
    const int row = i / kCopies;
    const int column = i % kCopies * kPerCopy;
    const bool inside = row < rows && column < columns;
    copy_async<16>(tile + row * kStride<kDepth> + column,
                   inside ? from + row * stride + column : from, inside);
  }
}

__device__ inline int lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ inline int warp() {
  return static_cast<int>(threadIdx.x) / 32;
}
/// In a C, this lane's rows are lane_row() and that + 8, its columns 2 · lane_pair() and that + 1.
__device__ inline int lane_row() {
  return lane() / 4;
}
__device__ inline int lane_pair() {
  return lane() % 4;
}

template <typename T>
__device__ std::uint32_t pair_of(float low, float high) {
  return static_cast<std::uint32_t>(narrow<T>(low).bits) |
         static_cast<std::uint32_t>(narrow<T>(high).bits) << 16;
}

/// Rounds two C's side by side, 16 × 16, to T, which makes an A.
template <typename T>
__device__ void as_a(std::uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pair_of<T>(left[0], left[1]);
  a[1] = pair_of<T>(left[2], left[3]);
  a[2] = pair_of<T>(right[0], right[1]);
  a[3] = pair_of<T>(right[2], right[3]);
}

/// sums += rows · othersᵀ: kRowTiles · 16 rows of one tile by kOthers · 8 rows of another, over
/// their columns. kOthers is even.
template <int kDepth, int kRowTiles, int kOthers, typename T>
__device__ void multiply_rows(float (&sums)[kRowTiles][kOthers][4],
                              const T* rows,
                              const T* others) {
  // The four matrices of an A: rows and 8 more, columns and 8 more, columns last. Those of two B's:
  // columns first.
  const T* const a_at = rows + lane() % 16 * kStride<kDepth> + lane() / 16 * 8;
  const T* const b_at =
      others + (lane() % 8 + lane() / 16 * 8) * kStride<kDepth> + lane() / 8 % 2 * 8;
#pragma unroll
  for (int column = 0; column < kDepth; column += 16) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      load_matrices(a[m], a_at + m * 16 * kStride<kDepth> + column);
    }
#pragma unroll
    for (int n = 0; n < kOthers; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, b_at + n * 8 * kStride<kDepth> + column);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add<T>(sums[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// sums += weights · rows: C's of kRowTiles · 16 by kTerms · 8, rounded to T, by kTerms · 8 rows of
/// a tile with all their columns. kTerms is even.
template <int kDepth, int kRowTiles, int kTerms, typename T>
__device__ void multiply_by_rows(float (&sums)[kRowTiles][kDepth / 8][4],
                                 const float (&weights)[kRowTiles][kTerms][4],
                                 const T* rows) {
  // The four matrices of two B's: rows and 8 more first.
  const T* const b_at = rows + lane() % 16 * kStride<kDepth> + lane() / 16 * 8;
#pragma unroll
  for (int term = 0; term < kTerms; term += 2) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      as_a<T>(a[m], weights[m][term], weights[m][term + 1]);
    }
#pragma unroll
    for (int n = 0; n < kDepth / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, b_at + term * 8 * kStride<kDepth> + n * 8);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add<T>(sums[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Writes C's side by side, 16 rows, each of a lane's two multiplied by its factor; only rows of
/// [0, rows) and columns of [0, columns) are written.
template <int kDepth, typename T>
__device__ void write_rows(const float (&sums)[kDepth / 8][4],
                           const float (&factors)[2],
                           T* to,
                           std::int64_t stride,
                           int rows,
                           int columns) {
#pragma unroll
  for (int n = 0; n < kDepth / 8; ++n) {
    const int column = n * 8 + 2 * lane_pair();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_row() + 8 * half;
      if (row < rows && column < columns) {
        *reinterpret_cast<std::uint32_t*>(to + row * stride + column) =
            pair_of<T>(sums[n][2 * half] * factors[half], sums[n][2 * half + 1] * factors[half]);
      }
    }
  }
}

}  // namespace dstrain::cuda
