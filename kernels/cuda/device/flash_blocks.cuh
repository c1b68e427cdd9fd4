// What flash attention's kernels share: the sizes for a head's depth, a block's place, and the
// launch.
#pragma once

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/flash_attention.h"
#include "kernels/cuda/device/flash_tiles.cuh"

namespace dstrain::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

/// Rows of a tile that passes. Chosen so that a block's shared memory stays below 99 KiB, which is
/// all that GPUs of compute capability 8.6 and 8.9 have.
template <int kDepth>
constexpr int kPassing = kDepth <= 80 ? 64 : 32;

/// Rows of a block's own tile.
template <int kRowTiles>
constexpr int kOwnRows = kRowTiles * 16 * kTileWarps;

/// The block's place. Tiles are the slowest dim and come in the order of their work, the longest
/// first, so that the short ones fill the end.
struct Place {
  int tile;
  int head;
  std::int64_t b;
};
__device__ inline Place place_of_block(bool last_first) {
  const int tile = static_cast<int>(last_first ? gridDim.z - 1 - blockIdx.z : blockIdx.z);
  return {tile, static_cast<int>(blockIdx.x), blockIdx.y};
}
template <typename T>
dim3 blocks_of(const AttentionInputs<T>& in, int heads, int rows) {
  return dim3(static_cast<unsigned>(heads), static_cast<unsigned>(in.batch),
              static_cast<unsigned>((in.queries + rows - 1) / rows));
}

/// How many of `count` rows lie behind `first`, at most `most`; may be negative.
__device__ inline int rows_from(int first, int count, int most) {
  return count - first < most ? count - first : most;
}

/// Calls f with the number of columns that kernels are made for.
template <typename F>
void with_depth(int head_dim, F&& f) {
  if (head_dim <= 64) {
    f.template operator()<64>();
  } else if (head_dim <= 80) {
    f.template operator()<80>();
  } else if (head_dim <= 96) {
    f.template operator()<96>();
  } else {
    f.template operator()<128>();
  }
}

}  // namespace dstrain::cuda
