// Flash attention (Dao 2023) on tensor cores, backward, causal, grouped queries, through windows
// and within documents (pairs of tiles that nobody sees are left out), deterministic: one kernel
// for dQ, where keys pass as in forward, and one for dK and dV, where a block has keys and the
// queries of the group's heads pass, transposed:
//   Sᵀ = K Qᵀ     dPᵀ = V dOᵀ     dV += Pᵀ dO     dK += dSᵀ Q
// Seven products instead of the five of one kernel that would add up dQ with atomics, in any order:
// 14 · D · T² / 2 operations a head.
//
// What ptxas gives each block on sm_90 (CUDA 13.0), without spills (but for one register of dQ at
// 128), and what then fits on a multiprocessor of an H100:
//         dQ                                  dK, dV
//   D     shared memory  registers  blocks    shared memory  registers  blocks
//   64    72 KiB         166        3         73 KiB         246        2
//   80    88 KiB         166        2         67 KiB         168        3
//   96    78 KiB         238        2         53 KiB         218        2
//   128   68 KiB         168        3         69 KiB         248        2
// 157 TFLOP/s of both kernels on an H200 (D = 64, T = 1024).
//
// T sequence, D head dim; S = scores, P = probabilities
#include "kernels/cuda/device/flash_blocks.cuh"

namespace dstrain::cuda {
namespace {

/// The number of rows of a warp, in sixteens: as many as its sums leave room for in 255 registers.
template <int kDepth>
constexpr int kQueryTiles = kDepth <= 96 ? 2 : 1;
template <int kDepth>
constexpr int kKeyTiles = kDepth <= 64 ? 2 : 1;
/// The number of rows of the passing tile that are multiplied at once, so that P and dS are 32
/// numbers a lane.
template <int kRowTiles>
constexpr int kRowsAtOnce = 32 / kRowTiles;

/// Computes p from scores, and dS / scale from dP.
__device__ void to_ds(float& score, float& dp, float scale2, float logsumexp2, float delta) {
  score = exp2_to_zero(score * scale2 - logsumexp2);
  dp = score * (dp - delta);
}

/// The end of the tiles of kQueries queries that see one of the keys before `end_of_keys`, from
/// tile `begin` on, whose queries come last to see less.
template <int kQueries, typename T>
__device__ int end_of_seeing_tiles(
    const AttentionInputs<T>& in, std::int64_t b, int end_of_keys, int begin, int end) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (first_key_seen_by(in, b, middle * kQueries) < end_of_keys) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return end;
}

/// Shared memory of dq_kernel: Q, dO, and twice K and V.
template <int kDepth, typename T>
constexpr std::size_t kDqSharedBytes = (2 * kOwnRows<kQueryTiles<kDepth>> +
                                        4 * kPassing<kDepth>)*kStride<kDepth> *
                                       sizeof(T);

template <int kDepth, bool kDrops, typename T>
__global__ void __launch_bounds__(kTileThreads) dq_kernel(AttentionBackward<T> back) {
  constexpr int kRowTiles = kQueryTiles<kDepth>;
  constexpr int kQueries = kOwnRows<kRowTiles>;
  constexpr int kKeys = kPassing<kDepth>;
  constexpr int kAtOnce = kRowsAtOnce<kRowTiles>;
  constexpr int kTile = kKeys * kStride<kDepth>;
  const AttentionInputs<T>& in = back.inputs;
  T* const q_tile = dynamic_shared<T>();
  T* const dout_tile = q_tile + kQueries * kStride<kDepth>;
  T* const kv_tiles = dout_tile + kQueries * kStride<kDepth>;  // K, V, K, V
  const Place at = place_of_block(true);
  const int first_of_block = at.tile * kQueries;
  const int first = first_of_block + warp() * kRowTiles * 16;
  const std::int64_t first_query = at.b * in.queries + first_of_block;
  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;
  const std::int64_t kv = at.b * in.keys * in.key_stride + at.head / in.group * in.head_dim;
  const auto copy_keys = [&](int tile) {
    T* const to = kv_tiles + tile % 2 * 2 * kTile;
    const int rows = rows_from(tile * kKeys, in.keys, kKeys);
    const std::int64_t from = kv + std::int64_t{tile} * kKeys * in.key_stride;
    copy_tile<kDepth, kKeys>(to, in.k + from, in.key_stride, rows, in.head_dim);
    copy_tile<kDepth, kKeys>(to + kTile, in.v + from, in.key_stride, rows, in.head_dim);
    commit_copies();
  };

  const int rows_of_block = rows_from(first_of_block, in.queries, kQueries);
  copy_tile<kDepth, kQueries>(q_tile, in.q + first_query * in.query_stride + at.head * in.head_dim,
                              in.query_stride, rows_of_block, in.head_dim);
  copy_tile<kDepth, kQueries>(dout_tile,
                              back.dout + first_query * out_stride + at.head * in.head_dim,
                              out_stride, rows_of_block, in.head_dim);
  const int earliest = first_keys_of(in, at.b, first_of_block, kQueries).earliest / kKeys;  // tile
  copy_keys(earliest);
  float logsumexp2[kRowTiles][2] = {};  // zeros in rows behind the end, whose dS is then 0
  float delta[kRowTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + m * 16 + lane_row() + 8 * half;
      if (query < in.queries) {
        const std::int64_t row = (at.b * in.query_heads + at.head) * in.queries + query;
        logsumexp2[m][half] = back.logsumexp[row] * kLog2E;
        delta[m][half] = back.delta[row];
      }
    }
  }
  const T* const q_rows = q_tile + warp() * kRowTiles * 16 * kStride<kDepth>;
  const T* const dout_rows = dout_tile + warp() * kRowTiles * 16 * kStride<kDepth>;
  const float scale2 = in.scale * kLog2E;
  float sums[kRowTiles][kDepth / 8][4] = {};
  const int seen = rows_from(0, in.keys, in.first_position + first_of_block + kQueries);  // keys
  const int tiles = (seen + kKeys - 1) / kKeys;
  const int latest = first_keys_of(in, at.b, first, kRowTiles * 16).latest;  // of this warp
  for (int tile = earliest; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is there, and all are done with the one before
    if (tile + 1 < tiles) {
      copy_keys(tile + 1);
    }
    for (int chunk = 0; chunk < kKeys; chunk += kAtOnce) {
      const int ahead = tile * kKeys + chunk - in.first_position - first;
      if (ahead >= kRowTiles * 16) {
        break;  // all after this warp's queries
      }
      const T* const k_rows = kv_tiles + tile % 2 * 2 * kTile + chunk * kStride<kDepth>;
      float scores[kRowTiles][kAtOnce / 8][4] = {};
      float dp[kRowTiles][kAtOnce / 8][4] = {};
      multiply_rows<kDepth>(scores, q_rows, k_rows);
      multiply_rows<kDepth>(dp, dout_rows, k_rows + kTile);
      if constexpr (kDrops) {
        drop<kAtOnce>(dp, in.dropout.of_sample(at.b), in.first_head + at.head,
                      in.first_query + first, in.first_key + tile * kKeys + chunk);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kAtOnce / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = ahead + n * 8 + 2 * lane_pair() + e % 2;
            const int query = m * 16 + lane_row() + 8 * (e / 2);
            to_ds(scores[m][n][e], dp[m][n][e], scale2, logsumexp2[m][e / 2], delta[m][e / 2]);
            dp[m][n][e] = key > query ? 0.0F : dp[m][n][e];
          }
        }
      }
      if (tile * kKeys + chunk < latest) {
        hide_earlier_keys<kAtOnce>(dp, 0.0F, in, at.b, first, tile * kKeys + chunk);
      }
      multiply_by_rows<kDepth>(sums, dp, k_rows);
    }
  }
  const float scales[2] = {in.scale, in.scale};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const std::int64_t query = at.b * in.queries + first + m * 16;
    write_rows<kDepth>(sums[m], scales, back.dq + query * back.dq_stride + at.head * in.head_dim,
                       back.dq_stride, in.queries - first - m * 16, in.head_dim);
  }
}

/// A tile of queries that passes, twice in shared memory.
template <int kDepth, typename T>
struct PassingQueries {
  T q[kPassing<kDepth> * kStride<kDepth>];
  T dout[kPassing<kDepth> * kStride<kDepth>];
  float logsumexp[kPassing<kDepth>];
  float delta[kPassing<kDepth>];
};

/// Shared memory of dkv_kernel: K, V, and twice Q, dO and what belongs to their rows.
template <int kDepth, typename T>
constexpr std::size_t kDkvSharedBytes = 2 * kOwnRows<kKeyTiles<kDepth>>* kStride<kDepth> *
                                            sizeof(T) +
                                        2 * sizeof(PassingQueries<kDepth, T>);

template <int kDepth, typename T>
__device__ void copy_queries(PassingQueries<kDepth, T>& to,
                             const AttentionBackward<T>& back,
                             std::int64_t b,
                             int head,
                             int first) {
  constexpr int kQueries = kPassing<kDepth>;
  const AttentionInputs<T>& in = back.inputs;
  const int rows = rows_from(first, in.queries, kQueries);
  const std::int64_t query = b * in.queries + first;
  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;
  copy_tile<kDepth, kQueries>(to.q, in.q + query * in.query_stride + head * in.head_dim,
                              in.query_stride, rows, in.head_dim);
  copy_tile<kDepth, kQueries>(to.dout, back.dout + query * out_stride + head * in.head_dim,
                              out_stride, rows, in.head_dim);
  const std::int64_t sums = (b * in.query_heads + head) * in.queries + first;
  if (const int row = static_cast<int>(threadIdx.x); row < kQueries) {
    // Rows after the end are zero: q and dout are zero there, so dS and dV are too.
    const std::int64_t at = row < rows ? sums + row : sums;
    copy_async<4>(to.logsumexp + row, back.logsumexp + at, row < rows);
    copy_async<4>(to.delta + row, back.delta + at, row < rows);
  }
  commit_copies();
}

template <int kDepth, bool kDrops, typename T>
__global__ void __launch_bounds__(kTileThreads) dkv_kernel(AttentionBackward<T> back) {
  constexpr int kRowTiles = kKeyTiles<kDepth>;
  constexpr int kKeys = kOwnRows<kRowTiles>;
  constexpr int kQueries = kPassing<kDepth>;
  constexpr int kAtOnce = kRowsAtOnce<kRowTiles>;
  const AttentionInputs<T>& in = back.inputs;
  auto* const passing = dynamic_shared<PassingQueries<kDepth, T>>();
  T* const k_tile = reinterpret_cast<T*>(passing + 2);
  T* const v_tile = k_tile + kKeys * kStride<kDepth>;
  const Place at = place_of_block(false);
  const int first_of_block = at.tile * kKeys;
  const int first = first_of_block + warp() * kRowTiles * 16;  // this warp's first key
  const std::int64_t kv_at =
      (at.b * in.keys + first_of_block) * in.key_stride + at.head * in.head_dim;
  // The tiles with queries that see these keys, of one head after the other.
  const int earliest =
      first_of_block > in.first_position ? (first_of_block - in.first_position) / kQueries : 0;
  const int end = end_of_seeing_tiles<kQueries>(in, at.b, first_of_block + kKeys, earliest,
                                                (in.queries + kQueries - 1) / kQueries);
  const int later = end - earliest;
  const int visits = in.group * later;
  const auto copy_visit = [&](int visit) {
    copy_queries<kDepth>(passing[visit % 2], back, at.b, at.head * in.group + visit / later,
                         (earliest + visit % later) * kQueries);
  };

  const int rows_of_block = rows_from(first_of_block, in.keys, kKeys);
  copy_tile<kDepth, kKeys>(k_tile, in.k + kv_at, in.key_stride, rows_of_block, in.head_dim);
  copy_tile<kDepth, kKeys>(v_tile, in.v + kv_at, in.key_stride, rows_of_block, in.head_dim);
  copy_visit(0);
  const T* const k_rows = k_tile + warp() * kRowTiles * 16 * kStride<kDepth>;
  const T* const v_rows = v_tile + warp() * kRowTiles * 16 * kStride<kDepth>;
  const float scale2 = in.scale * kLog2E;
  float dk[kRowTiles][kDepth / 8][4] = {};
  float dv[kRowTiles][kDepth / 8][4] = {};
  for (int visit = 0; visit < visits; ++visit) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is there, and all are done with the one before
    if (visit + 1 < visits) {
      copy_visit(visit + 1);
    }
    const PassingQueries<kDepth, T>& queries = passing[visit % 2];
    for (int chunk = 0; chunk < kQueries; chunk += kAtOnce) {
      const int first_query = (earliest + visit % later) * kQueries + chunk;
      const int ahead = first - in.first_position - first_query;  // of the first key
      if (ahead >= kAtOnce) {
        continue;  // all before this warp's keys
      }
      const bool hides = first_keys_of(in, at.b, first_query, kAtOnce).latest > first;
      float p[kRowTiles][kAtOnce / 8][4] = {};
      float ds[kRowTiles][kAtOnce / 8][4] = {};
      multiply_rows<kDepth>(p, k_rows, queries.q + chunk * kStride<kDepth>);
      multiply_rows<kDepth>(ds, v_rows, queries.dout + chunk * kStride<kDepth>);
#pragma unroll
      for (int n = 0; n < kAtOnce / 8; ++n) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int query = n * 8 + 2 * lane_pair() + side;
          const float logsumexp2 = queries.logsumexp[chunk + query] * kLog2E;
          const float delta = queries.delta[chunk + query];
          const int hidden =  // of this warp's keys, those before the first that the query sees
              hides && first_query + query < in.queries
                  ? first_key_seen_by(in, at.b, first_query + query) - first
                  : 0;
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            float kept[2] = {1.0F, 1.0F};  // of this lane's two keys: words 0 or 1, and 2 or 3
            if constexpr (kDrops) {
              const SampleDropout dropout = in.dropout.of_sample(at.b);
              std::uint32_t words[4];
              words_of_keys(words, dropout, in.first_head + at.head * in.group + visit / later,
                            in.first_key + first + m * 16, lane_row() / 2,
                            in.first_query + first_query + query);
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const std::uint32_t word =
                    lane_row() % 2 == 0 ? words[2 * half] : words[2 * half + 1];
                kept[half] = word < dropout.threshold ? 0.0F : dropout.factor;
              }
            }
#pragma unroll
            for (int e = side; e < 4; e += 2) {
              const int key = m * 16 + lane_row() + 8 * (e / 2);
              const bool seen = ahead + key <= query && key >= hidden;
              ds[m][n][e] *= kept[e / 2];
              to_ds(p[m][n][e], ds[m][n][e], scale2, logsumexp2, delta);
              p[m][n][e] = seen ? p[m][n][e] * kept[e / 2] : 0.0F;
              ds[m][n][e] = seen ? ds[m][n][e] : 0.0F;
            }
          }
        }
      }
      multiply_by_rows<kDepth>(dv, p, queries.dout + chunk * kStride<kDepth>);
      multiply_by_rows<kDepth>(dk, ds, queries.q + chunk * kStride<kDepth>);
    }
  }
  const float scales[2] = {in.scale, in.scale};
  const float ones[2] = {1.0F, 1.0F};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const std::int64_t row = at.b * in.keys + first + m * 16;
    const int column = at.head * in.head_dim;
    const int rows = in.keys - first - m * 16;  // may be negative
    write_rows<kDepth>(dk[m], scales, back.dk + row * back.dk_stride + column, back.dk_stride, rows,
                       in.head_dim);
    write_rows<kDepth>(dv[m], ones, back.dv + row * back.dv_stride + column, back.dv_stride, rows,
                       in.head_dim);
  }
}

}  // namespace

template <typename T>
void flash_backward(const Launch& to, const AttentionBackward<T>& back) {
  const AttentionInputs<T>& in = back.inputs;
  const auto launch_kernels = [&]<int kDepth>(auto dq, auto dkv) {
    launch("attention_backward (flash): dq", dq,
           blocks_of(in, in.query_heads, in.queries, kOwnRows<kQueryTiles<kDepth>>),
           dim3(kTileThreads), kDqSharedBytes<kDepth, T>, to.stream, back);
    launch("attention_backward (flash): dk, dv", dkv,
           blocks_of(in, in.query_heads / in.group, in.keys, kOwnRows<kKeyTiles<kDepth>>),
           dim3(kTileThreads), kDkvSharedBytes<kDepth, T>, to.stream, back);
  };
  if (in.dropout.probability > 0.0F) {
    with_depth_of_dropout(in.head_dim, [&]<int kDepth>() {
      launch_kernels.template operator()<kDepth>(dq_kernel<kDepth, true, T>,
                                                 dkv_kernel<kDepth, true, T>);
    });
    return;
  }
  with_depth(in.head_dim, [&]<int kDepth>() {
    launch_kernels.template operator()<kDepth>(dq_kernel<kDepth, false, T>,
                                               dkv_kernel<kDepth, false, T>);
  });
}

template void flash_backward(const Launch&, const AttentionBackward<BF16>&);
template void flash_backward(const Launch&, const AttentionBackward<F16>&);

}  // namespace dstrain::cuda
