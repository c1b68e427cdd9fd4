// Tiles of 64 rows in shared memory and the fragments of tensor_core.cuh that are read from them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace dstrain::cuda {

constexpr int kTile = 64;      ///< queries or keys
constexpr int kTileWarps = 4;  ///< of a block; each has 16 rows of the block's own tile
constexpr int kTileThreads = 32 * kTileWarps;

/// kDepth: a head's columns, rounded up to 16. Rows lie 16 bytes further apart than they are long,
/// so that eight neighbouring ones begin in different banks.
template <int kDepth>
constexpr int kStride = kDepth + 8;
template <int kDepth>
constexpr int kTileElements = kTile* kStride<kDepth>;

/// The rows [0, rows) of a matrix, zeros behind them and behind `columns`.
template <int kDepth, typename T>
__device__ void load_tile(T* tile, const T* from, std::int64_t stride, int rows, int columns) {
  constexpr int kPerPack = 8;
  constexpr int kPacks = kDepth / kPerPack;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kTileThreads) {
    const int row = i / kPacks;
    const int column = i % kPacks * kPerPack;
    Pack<T, kPerPack> pack{};
    if (row < rows && column < columns) {
      pack = *reinterpret_cast<const Pack<T, kPerPack>*>(from + row * stride + column);
    }
    *reinterpret_cast<Pack<T, kPerPack>*>(tile + row * kStride<kDepth> + column) = pack;
  }
}

__device__ inline int lane_row() {
  return static_cast<int>(threadIdx.x) % 32 / 4;  // g
}
__device__ inline int lane_pair() {
  return static_cast<int>(threadIdx.x) % 4;  // t
}

template <typename T>
__device__ std::uint32_t word_at(const T* at) {
  return *reinterpret_cast<const std::uint32_t*>(at);
}

/// A of 16 rows and columns [column, column + 16) of a tile.
template <int kDepth, typename T>
__device__ void read_a(std::uint32_t (&a)[4], const T* rows, int column) {
  const T* const at = rows + lane_row() * kStride<kDepth> + column + 2 * lane_pair();
  a[0] = word_at(at);
  a[1] = word_at(at + 8 * kStride<kDepth>);
  a[2] = word_at(at + 8);
  a[3] = word_at(at + 8 * kStride<kDepth> + 8);
}

/// B whose columns are 8 rows of a tile, over its columns [column, column + 16).
template <int kDepth, typename T>
__device__ void read_b(std::uint32_t (&b)[2], const T* rows, int column) {
  const T* const at = rows + lane_row() * kStride<kDepth> + column + 2 * lane_pair();
  b[0] = word_at(at);
  b[1] = word_at(at + 8);
}

/// B whose rows are 16 rows of a tile, of its columns [column, column + 8).
template <int kDepth, typename T>
__device__ void read_b_rows(std::uint32_t (&b)[2], const T* rows, int column) {
  load_transposed(b, rows + static_cast<int>(threadIdx.x) % 16 * kStride<kDepth> + column);
}

template <typename T>
__device__ std::uint32_t pair_of(float low, float high) {
  return static_cast<std::uint32_t>(narrow<T>(low).bits) |
         static_cast<std::uint32_t>(narrow<T>(high).bits) << 16;
}

/// Two C's side by side, 16 × 16, rounded to T: an A.
template <typename T>
__device__ void as_a(std::uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pair_of<T>(left[0], left[1]);
  a[1] = pair_of<T>(left[2], left[3]);
  a[2] = pair_of<T>(right[0], right[1]);
  a[3] = pair_of<T>(right[2], right[3]);
}

/// C's side by side, 16 rows, those of [0, rows) and columns of [0, columns) written.
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
