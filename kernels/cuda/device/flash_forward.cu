// Flash attention (Dao 2023) on tensor cores, forward, causal, grouped queries, through windows and
// within documents: tiles of keys that nobody sees are left out. Also over keys that are all before
// the queries.
//
// A block has 128 queries of a head, a warp 32 of them, so that what it reads of a key serves two
// products; keys and values pass. Probabilities stay in registers: what one product gives (C) is
// what the next takes (A). 4 · D · T² / 2 operations a head.
//
// What ptxas gives each block on sm_90 (CUDA 13.0), without spills, and what then fits on a
// multiprocessor of an H100, where registers are the limit:
//   D     shared memory   registers   blocks
//   64    54 KiB          222         2
//   80    66 KiB          238         2
//   96    52 KiB          214         2
//   128   68 KiB          240         2
// Where keys are hidden: 226, 240, 207 and 243.
// 204 TFLOP/s on an H200 (D = 64, T = 1024). mma.sync reaches less on Hopper than wgmma does:
// cuDNN's is faster there.
//
// T sequence, D head dim
#include "kernels/cuda/device/flash_blocks.cuh"

namespace dstrain::cuda {
namespace {

constexpr int kRowTiles = 2;
constexpr int kQueries = kOwnRows<kRowTiles>;

/// The softmax of a row so far, in powers of two, for the two rows of each C that a lane has.
struct Softmax {
  float largest[kRowTiles][2];
  float totals[kRowTiles][2];
};

/// Combines over the four lanes that share rows of a C.
template <typename Combine>
__device__ float row_reduce(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(kWholeWarp, value, 1));
  return combine(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

/// Hides scores of keys after the query; `ahead` is how far the first key is after the first query.
template <int kKeys>
__device__ void hide_later_keys(float (&scores)[kRowTiles][kKeys / 8][4], int ahead) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = ahead + n * 8 + 2 * lane_pair() + e % 2;
        const int query = m * 16 + lane_row() + 8 * (e / 2);
        scores[m][n][e] = key > query ? -INFINITY : scores[m][n][e];
      }
    }
  }
}

/// Turns scores into exp2(scale2 · score - largest); earlier sums are scaled to the new largest. A
/// row that has not seen a key yet is taken relative to 0, which makes 0 of its scores of -∞:
/// relative to their own size, be it ∞ or finite, the rounding of one product would decide between
/// 0, NaN and ∞.
template <int kKeys, int kDepth>
__device__ void to_probabilities(float (&scores)[kRowTiles][kKeys / 8][4],
                                 Softmax& softmax,
                                 float (&sums)[kRowTiles][kDepth / 8][4],
                                 float scale2) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    // Of these scores, before the scale, which is positive.
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        largest[e / 2] = fmaxf(largest[e / 2], scores[m][n][e]);
      }
    }
    float shrink[2];
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = softmax.largest[m][half];
      const float now = fmaxf(before, row_reduce(largest[half], Larger{}) * scale2);
      softmax.largest[m][half] = now;
      base[half] = now == -INFINITY ? 0.0F : now;
      shrink[half] = exp2_to_zero(before - base[half]);
      softmax.totals[m][half] *= shrink[half];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[m][n][e] = exp2_to_zero(scores[m][n][e] * scale2 - base[e / 2]);
        softmax.totals[m][e / 2] += scores[m][n][e];
      }
    }
#pragma unroll
    for (int n = 0; n < kDepth / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[m][n][e] *= shrink[e / 2];
      }
    }
  }
}

/// Shared memory: Q, and twice K and V.
template <int kDepth, typename T>
constexpr std::size_t kSharedBytes = (kQueries + 4 * kPassing<kDepth>)*kStride<kDepth> * sizeof(T);

/// kHides: a window or a document's border hides keys, which takes registers that heads of 128 do
/// not have to spare. kDrops: probabilities are dropped, which takes as much time as all else.
template <int kDepth, bool kHides, bool kDrops, typename T>
__global__ void __launch_bounds__(kTileThreads)
    forward_kernel(AttentionInputs<T> in, T* out, float* logsumexp) {
  constexpr int kKeys = kPassing<kDepth>;
  constexpr int kTile = kKeys * kStride<kDepth>;
  T* const q_tile = dynamic_shared<T>();
  T* const kv_tiles = q_tile + kQueries * kStride<kDepth>;  // K, V, K, V
  const Place at = place_of_block(true);
  const int first_of_block = at.tile * kQueries;
  const int first = first_of_block + warp() * kRowTiles * 16;  // this warp's first query
  const std::int64_t first_query = at.b * in.queries + first_of_block;
  const std::int64_t kv = at.b * in.keys * in.key_stride + at.head / in.group * in.head_dim;
  const auto copy_keys = [&](int tile) {
    T* const to = kv_tiles + tile % 2 * 2 * kTile;
    const int rows = rows_from(tile * kKeys, in.keys, kKeys);
    const std::int64_t from = kv + std::int64_t{tile} * kKeys * in.key_stride;
    copy_tile<kDepth, kKeys>(to, in.k + from, in.key_stride, rows, in.head_dim);
    copy_tile<kDepth, kKeys>(to + kTile, in.v + from, in.key_stride, rows, in.head_dim);
    commit_copies();
  };

  copy_tile<kDepth, kQueries>(q_tile, in.q + first_query * in.query_stride + at.head * in.head_dim,
                              in.query_stride, rows_from(first_of_block, in.queries, kQueries),
                              in.head_dim);
  const int earliest =  // tile
      kHides ? first_keys_of(in, at.b, first_of_block, kQueries).earliest / kKeys : 0;
  copy_keys(earliest);
  const T* const q_rows = q_tile + warp() * kRowTiles * 16 * kStride<kDepth>;
  float sums[kRowTiles][kDepth / 8][4] = {};
  Softmax softmax{{{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}, {}};
  const int seen = rows_from(0, in.keys, in.first_position + first_of_block + kQueries);  // keys
  const int tiles = (seen + kKeys - 1) / kKeys;
  const int latest = kHides ? first_keys_of(in, at.b, first, kRowTiles * 16).latest : 0;
  for (int tile = earliest; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is there, and all are done with the one before
    if (tile + 1 < tiles) {
      copy_keys(tile + 1);
    }
    const int ahead = tile * kKeys - in.first_position - first;
    if (ahead >= kRowTiles * 16) {
      continue;  // all after this warp's queries
    }
    const T* const k_tile = kv_tiles + tile % 2 * 2 * kTile;
    float scores[kRowTiles][kKeys / 8][4] = {};
    multiply_rows<kDepth>(scores, q_rows, k_tile);
    if (ahead + kKeys > 1) {
      hide_later_keys<kKeys>(scores, ahead);
    }
    if (kHides && tile * kKeys < latest) {
      hide_earlier_keys<kKeys>(scores, -INFINITY, in, at.b, first, tile * kKeys);
    }
    to_probabilities<kKeys, kDepth>(scores, softmax, sums, in.scale * kLog2E);
    if constexpr (kDrops) {
      drop<kKeys>(scores, in.dropout.of_sample(at.b), in.first_head + at.head,
                  in.first_query + first, in.first_key + tile * kKeys);
    }
    multiply_by_rows<kDepth>(sums, scores, k_tile + kTile);
  }

  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const int rows = in.queries - first - m * 16;  // may be negative
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_reduce(softmax.totals[m][half], Plus{});
      factors[half] = 1.0F / total;
      const int row = lane_row() + 8 * half;
      if (lane_pair() == 0 && row < rows) {
        logsumexp[(at.b * in.query_heads + at.head) * in.queries + first + m * 16 + row] =
            softmax.largest[m][half] * kLn2 + logf(total);
      }
    }
    write_rows<kDepth>(
        sums[m], factors,
        out + (at.b * in.queries + first + m * 16) * out_stride + at.head * in.head_dim, out_stride,
        rows, in.head_dim);
  }
}

/// Whether every query sees every key, as with an earlier chunk of a ring, and these fill whole
/// tiles: behind the last key only causality hides what is none.
template <typename T>
bool sees_all(const AttentionInputs<T>& in) {
  return in.keys % kPassing<64> == 0 && in.first_position >= in.keys - 1 &&
         in.window >= in.first_position + in.queries && in.document_positions == nullptr;
}

}  // namespace

template <typename T>
bool flash_takes(const AttentionInputs<T>& in, const void* out) {
  constexpr int kPerPack = 8;
  constexpr int kMostQueries = 65535 * 64;  // a grid's last dim, of tiles of 64 and more
  const bool drops_whole_counters =
      in.dropout.probability == 0.0F || in.first_key % kDropoutAlong == 0;
  const bool is_square = in.first_position == 0 && in.queries == in.keys;
  return in.head_dim <= 128 && in.head_dim % kPerPack == 0 && (is_square || sees_all(in)) &&
         in.queries <= kMostQueries && in.keys <= kMostQueries && in.cap == 0.0F &&
         in.slopes == nullptr && drops_whole_counters && in.value_stride == in.key_stride &&
         all_aligned(in.q, in.k, in.v, out) && in.query_stride % kPerPack == 0 &&
         in.key_stride % kPerPack == 0;
}

template <typename T>
void flash_forward(const Launch& to, const AttentionInputs<T>& in, T* out, float* logsumexp) {
  const auto launch_kernel = [&]<int kDepth>(auto kernel) {
    launch("attention_forward (flash)", kernel, blocks_of(in, in.query_heads, in.queries, kQueries),
           dim3(kTileThreads), kSharedBytes<kDepth, T>, to.stream, in, out, logsumexp);
  };
  if (in.dropout.probability > 0.0F) {
    with_depth_of_dropout(in.head_dim, [&]<int kDepth>() {
      launch_kernel.template operator()<kDepth>(forward_kernel<kDepth, true, true, T>);
    });
    return;
  }
  with_depth(in.head_dim, [&]<int kDepth>() {
    const bool hides = in.document_positions != nullptr || in.window < in.queries;
    launch_kernel.template operator()<kDepth>(hides ? forward_kernel<kDepth, true, false, T>
                                                    : forward_kernel<kDepth, false, false, T>);
  });
}

template bool flash_takes(const AttentionInputs<BF16>&, const void*);
template bool flash_takes(const AttentionInputs<F16>&, const void*);
template void flash_forward(const Launch&, const AttentionInputs<BF16>&, BF16*, float*);
template void flash_forward(const Launch&, const AttentionInputs<F16>&, F16*, float*);

}  // namespace dstrain::cuda
