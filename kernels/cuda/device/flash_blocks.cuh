// Shared by flash attention's kernels: the sizes for a head's depth, a block's place, and the
// launch.
#pragma once

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/flash_attention.h"
#include "kernels/cuda/device/flash_tiles.cuh"

namespace dstrain::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

/// The number of rows of a passing tile, chosen so that a block's shared memory stays below 99 KiB,
/// which is all that GPUs of compute capability 8.6 and 8.9 have.
template <int kDepth>
constexpr int kPassing = kDepth <= 80 ? 64 : 32;

/// The number of rows of a block's own tile.
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
dim3 blocks_of(const AttentionInputs<T>& in, int heads, int positions, int rows) {
  return dim3(static_cast<unsigned>(heads), static_cast<unsigned>(in.batch),
              static_cast<unsigned>((positions + rows - 1) / rows));
}

/// The number of `count` rows from `first` on, at most `most`; may be negative.
__device__ inline int rows_from(int first, int count, int most) {
  return count - first < most ? count - first : most;
}

/// The first keys that the first and the last of `rows` queries from `first` on see.
struct FirstKeys {
  int earliest;
  int latest;
};
template <typename T>
__device__ FirstKeys
first_keys_of(const AttentionInputs<T>& in, std::int64_t b, int first, int rows) {
  const int last = in.queries - 1;
  const int end = first + rows - 1;
  return {first_key_seen_by(in, b, first < last ? first : last),
          first_key_seen_by(in, b, end < last ? end : last)};
}

/// Sets what belongs to keys before the first that a query sees to `hidden`. The rows are queries
/// from `first` on, the columns keys from `first_key` on.
template <int kKeys, int kRowTiles, typename T>
__device__ void hide_earlier_keys(float (&values)[kRowTiles][kKeys / 8][4],
                                  float hidden,
                                  const AttentionInputs<T>& in,
                                  std::int64_t b,
                                  int first,
                                  int first_key) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + m * 16 + lane_row() + 8 * half;
      if (query >= in.queries) {
        continue;
      }
      const int unseen = first_key_seen_by(in, b, query) - first_key;  // of these keys
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          float& value = values[m][n][2 * half + side];
          value = n * 8 + 2 * lane_pair() + side < unseen ? hidden : value;
        }
      }
    }
  }
}

/// The words of a counter of dropout: for 16 keys from `first_key` on, a multiple of 16, those that
/// differ from 2 · pair by 0, 1, 8 and 9.
__device__ inline void words_of_keys(std::uint32_t (&words)[4],
                                     const SampleDropout& dropout,
                                     int plane,
                                     int first_key,
                                     int pair,
                                     int query) {
  dropout_words(dropout, static_cast<std::uint32_t>(plane),
                static_cast<std::uint32_t>(first_key / kDropoutAlong * kDropoutCounters + pair),
                static_cast<std::uint32_t>(query), words);
}

/// Multiplies each value by dropout's factor. Rows are queries from `first` on, columns keys from
/// `first_key` on, a multiple of 16: of each 16, a lane's four of a row are one counter's.
template <int kKeys, int kRowTiles>
__device__ void drop(float (&values)[kRowTiles][kKeys / 8][4],
                     const SampleDropout& dropout,
                     int plane,
                     int first,
                     int first_key) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        std::uint32_t words[4];
        words_of_keys(words, dropout, plane, first_key + n * 8, lane_pair(),
                      first + m * 16 + lane_row() + 8 * half);
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          values[m][n + word / 2][2 * half + word % 2] *=
              words[word] < dropout.threshold ? 0.0F : dropout.factor;
        }
      }
    }
  }
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

/// The same for kernels with dropout, which are made for fewer.
template <typename F>
void with_depth_of_dropout(int head_dim, F&& f) {
  if (head_dim <= 64) {
    f.template operator()<64>();
  } else {
    f.template operator()<128>();
  }
}

}  // namespace dstrain::cuda
