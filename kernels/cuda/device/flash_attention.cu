// Flash attention (Dao 2023) on tensor cores, causal, grouped queries, deterministic.
//
// Forward: a block has 64 queries of a head, a warp 16 of them; keys and values pass in tiles
// of 64. Backward: one kernel for dQ with the same plan, and one for dK and dV where a block has 64
// keys and the queries of the group's heads pass, transposed:
//   Sᵀ = K Qᵀ     dPᵀ = V dOᵀ     dV += Pᵀ dO     dK += dSᵀ Q
// Seven products instead of the five of one kernel that would add up dQ with atomics. Probabilities
// and dS stay in registers: what one product gives (C) is what the next takes (A).
// Floor: 4 · D · T² / 2 operations a head forward, 14 · D · T² / 2 backward, at about 60 % of what
// mma.sync reaches (the rest is exponentials, and loads that nothing hides yet).
//
// T sequence, D head dim; S = scores, P = probabilities
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/flash_attention.h"
#include "kernels/cuda/device/flash_tiles.cuh"

namespace dstrain::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
constexpr float kHidden = -3.0e38F;

/// The block's place. Blocks with most keys to go through come first.
struct Place {
  int tile;
  int head;
  std::int64_t b;
};
__device__ Place place_of_block(bool last_first) {
  const int tile = static_cast<int>(last_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  return {tile, static_cast<int>(blockIdx.y), blockIdx.z};
}

template <typename T>
__device__ int rows_in_tile(const AttentionInputs<T>& in, int tile) {
  return in.queries - tile * kTile < kTile ? in.queries - tile * kTile : kTile;
}

/// Over the four lanes that share rows of a C.
template <typename Combine>
__device__ float row_reduce(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(kWholeWarp, value, 1));
  return combine(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

template <int kDepth, typename T>
__global__ void __launch_bounds__(kTileThreads)
    forward_kernel(AttentionInputs<T> in, T* out, float* logsumexp) {
  constexpr int kSteps = kDepth / 16;
  constexpr int kColumns = kDepth / 8;
  T* const q_tile = dynamic_shared<T>();
  T* const k_tile = q_tile + kTileElements<kDepth>;
  T* const v_tile = k_tile + kTileElements<kDepth>;
  const Place at = place_of_block(true);
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;  // this warp's, in the tile
  const int rows = rows_in_tile(in, at.tile);
  const std::int64_t first_query = at.b * in.queries + at.tile * kTile;
  const std::int64_t kv = at.b * in.keys * in.key_stride + at.head / in.group * in.head_dim;

  load_tile<kDepth>(q_tile, in.q + first_query * in.query_stride + at.head * in.head_dim,
                    in.query_stride, rows, in.head_dim);
  __syncthreads();
  std::uint32_t q[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    read_a<kDepth>(q[step], q_tile + first_row * kStride<kDepth>, step * 16);
  }
  float sums[kColumns][4] = {};
  float largest[2] = {kHidden, kHidden};
  float totals[2] = {0.0F, 0.0F};
  const float scale2 = in.scale * kLog2E;
  for (int tile = 0; tile <= at.tile; ++tile) {
    __syncthreads();  // all warps are done with the tiles before
    const std::int64_t from = kv + std::int64_t{tile} * kTile * in.key_stride;
    load_tile<kDepth>(k_tile, in.k + from, in.key_stride, rows_in_tile(in, tile), in.head_dim);
    load_tile<kDepth>(v_tile, in.v + from, in.key_stride, rows_in_tile(in, tile), in.head_dim);
    __syncthreads();
    float scores[kTile / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t k[2];
        read_b<kDepth>(k, k_tile + n * 8 * kStride<kDepth>, step * 16);
        multiply_add<T>(scores[n], q[step], k);
      }
    }
    float before[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = n * 8 + 2 * lane_pair() + e % 2;
        const int query = first_row + lane_row() + 8 * (e / 2);
        const bool hidden = tile == at.tile && key > query;
        scores[n][e] = hidden ? kHidden : scores[n][e] * scale2;
        largest[e / 2] = fmaxf(largest[e / 2], scores[n][e]);
      }
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = row_reduce(largest[half], Larger{});
      shrink[half] = exp2f(before[half] - largest[half]);
      totals[half] *= shrink[half];
    }
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2f(scores[n][e] - largest[e / 2]);
        totals[e / 2] += scores[n][e];
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[n][e] *= shrink[e / 2];
      }
    }
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      std::uint32_t p[4];
      as_a<T>(p, scores[2 * step], scores[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        std::uint32_t v[2];
        read_b_rows<kDepth>(v, v_tile + step * 16 * kStride<kDepth>, n * 8);
        multiply_add<T>(sums[n], p, v);
      }
    }
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    totals[half] = row_reduce(totals[half], Plus{});
    factors[half] = 1.0F / totals[half];
    const int row = first_row + lane_row() + 8 * half;
    if (lane_pair() == 0 && row < rows) {
      logsumexp[(at.b * in.query_heads + at.head) * in.queries + at.tile * kTile + row] =
          largest[half] * kLn2 + logf(totals[half]);
    }
  }
  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;
  write_rows<kDepth>(sums, factors,
                     out + (first_query + first_row) * out_stride + at.head * in.head_dim,
                     out_stride, rows - first_row, in.head_dim);
}

/// p of a C of scores, and dS / scale from a C of dP.
__device__ void to_ds(float& score, float& dp, float scale2, float logsumexp2, float delta) {
  score = exp2f(score * scale2 - logsumexp2);
  dp = score * (dp - delta);
}

template <int kDepth, typename T>
__global__ void __launch_bounds__(kTileThreads) dq_kernel(AttentionBackward<T> back) {
  constexpr int kSteps = kDepth / 16;
  constexpr int kColumns = kDepth / 8;
  const AttentionInputs<T>& in = back.inputs;
  T* const q_tile = dynamic_shared<T>();
  T* const dout_tile = q_tile + kTileElements<kDepth>;
  T* const k_tile = dout_tile + kTileElements<kDepth>;
  T* const v_tile = k_tile + kTileElements<kDepth>;
  const Place at = place_of_block(true);
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int rows = rows_in_tile(in, at.tile);
  const std::int64_t first_query = at.b * in.queries + at.tile * kTile;
  const std::int64_t q_at = first_query * in.query_stride + at.head * in.head_dim;
  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;
  const std::int64_t kv = at.b * in.keys * in.key_stride + at.head / in.group * in.head_dim;

  load_tile<kDepth>(q_tile, in.q + q_at, in.query_stride, rows, in.head_dim);
  load_tile<kDepth>(dout_tile, back.dout + first_query * out_stride + at.head * in.head_dim,
                    out_stride, rows, in.head_dim);
  float logsumexp2[2] = {};  // zeros in rows behind the end, whose dS is then 0
  float delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane_row() + 8 * half;
    if (row < rows) {
      const std::int64_t sum =
          (at.b * in.query_heads + at.head) * in.queries + at.tile * kTile + row;
      logsumexp2[half] = back.logsumexp[sum] * kLog2E;
      delta[half] = back.delta[sum];
    }
  }
  __syncthreads();
  std::uint32_t q[kSteps][4];
  std::uint32_t dout[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    read_a<kDepth>(q[step], q_tile + first_row * kStride<kDepth>, step * 16);
    read_a<kDepth>(dout[step], dout_tile + first_row * kStride<kDepth>, step * 16);
  }
  float sums[kColumns][4] = {};
  const float scale2 = in.scale * kLog2E;
  for (int tile = 0; tile <= at.tile; ++tile) {
    __syncthreads();  // all warps are done with the tiles before
    const std::int64_t from = kv + std::int64_t{tile} * kTile * in.key_stride;
    load_tile<kDepth>(k_tile, in.k + from, in.key_stride, rows_in_tile(in, tile), in.head_dim);
    load_tile<kDepth>(v_tile, in.v + from, in.key_stride, rows_in_tile(in, tile), in.head_dim);
    __syncthreads();
    for (int keys = 0; keys < kTile; keys += 16) {
      float scores[2][4] = {};
      float dp[2][4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int row = (keys + n * 8) * kStride<kDepth>;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          std::uint32_t b[2];
          read_b<kDepth>(b, k_tile + row, step * 16);
          multiply_add<T>(scores[n], q[step], b);
          read_b<kDepth>(b, v_tile + row, step * 16);
          multiply_add<T>(dp[n], dout[step], b);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = keys + n * 8 + 2 * lane_pair() + e % 2;
          const int query = first_row + lane_row() + 8 * (e / 2);
          to_ds(scores[n][e], dp[n][e], scale2, logsumexp2[e / 2], delta[e / 2]);
          dp[n][e] = tile == at.tile && key > query ? 0.0F : dp[n][e];
        }
      }
      std::uint32_t ds[4];
      as_a<T>(ds, dp[0], dp[1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        std::uint32_t k[2];
        read_b_rows<kDepth>(k, k_tile + keys * kStride<kDepth>, n * 8);
        multiply_add<T>(sums[n], ds, k);
      }
    }
  }
  const float factors[2] = {in.scale, in.scale};
  write_rows<kDepth>(sums, factors, back.dq + q_at + first_row * in.query_stride, in.query_stride,
                     rows - first_row, in.head_dim);
}

template <int kDepth, typename T>
__global__ void __launch_bounds__(kTileThreads) dkv_kernel(AttentionBackward<T> back) {
  constexpr int kSteps = kDepth / 16;
  constexpr int kColumns = kDepth / 8;
  __shared__ float logsumexp2[kTile];
  __shared__ float delta[kTile];
  const AttentionInputs<T>& in = back.inputs;
  T* const k_tile = dynamic_shared<T>();
  T* const v_tile = k_tile + kTileElements<kDepth>;
  T* const q_tile = v_tile + kTileElements<kDepth>;
  T* const dout_tile = q_tile + kTileElements<kDepth>;
  const Place at = place_of_block(false);
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int rows = rows_in_tile(in, at.tile);
  const std::int64_t kv_at =
      (at.b * in.keys + at.tile * kTile) * in.key_stride + at.head * in.head_dim;
  const std::int64_t out_stride = std::int64_t{in.query_heads} * in.head_dim;

  load_tile<kDepth>(k_tile, in.k + kv_at, in.key_stride, rows, in.head_dim);
  load_tile<kDepth>(v_tile, in.v + kv_at, in.key_stride, rows, in.head_dim);
  const T* const k_rows = k_tile + first_row * kStride<kDepth>;
  const T* const v_rows = v_tile + first_row * kStride<kDepth>;
  float dk[kColumns][4] = {};
  float dv[kColumns][4] = {};
  const float scale2 = in.scale * kLog2E;
  const int tiles = (in.queries + kTile - 1) / kTile;
  const int later = tiles - at.tile;  // tiles with queries that see these keys
  for (int visit = 0; visit < in.group * later; ++visit) {
    const int head = at.head * in.group + visit / later;
    const int tile = at.tile + visit % later;
    const int queries = rows_in_tile(in, tile);
    const std::int64_t first_query = at.b * in.queries + tile * kTile;
    __syncthreads();  // all warps are done with the tiles before
    load_tile<kDepth>(q_tile, in.q + first_query * in.query_stride + head * in.head_dim,
                      in.query_stride, queries, in.head_dim);
    load_tile<kDepth>(dout_tile, back.dout + first_query * out_stride + head * in.head_dim,
                      out_stride, queries, in.head_dim);
    if (threadIdx.x < kTile) {  // zeros behind the end: q and dout are zero there, so dS and dV are
      const int row = static_cast<int>(threadIdx.x);
      const std::int64_t sum = (at.b * in.query_heads + head) * in.queries + tile * kTile + row;
      logsumexp2[row] = row < queries ? back.logsumexp[sum] * kLog2E : 0.0F;
      delta[row] = row < queries ? back.delta[sum] : 0.0F;
    }
    __syncthreads();
    for (int first = 0; first < kTile; first += 16) {
      float p[2][4] = {};
      float ds[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t k[4];
        std::uint32_t v[4];
        read_a<kDepth>(k, k_rows, step * 16);
        read_a<kDepth>(v, v_rows, step * 16);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int row = (first + n * 8) * kStride<kDepth>;
          std::uint32_t b[2];
          read_b<kDepth>(b, q_tile + row, step * 16);
          multiply_add<T>(p[n], k, b);
          read_b<kDepth>(b, dout_tile + row, step * 16);
          multiply_add<T>(ds[n], v, b);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = first + n * 8 + 2 * lane_pair() + e % 2;
          const int key = first_row + lane_row() + 8 * (e / 2);
          to_ds(p[n][e], ds[n][e], scale2, logsumexp2[query], delta[query]);
          const bool hidden = tile == at.tile && key > query;
          p[n][e] = hidden ? 0.0F : p[n][e];
          ds[n][e] = hidden ? 0.0F : ds[n][e];
        }
      }
      std::uint32_t p_rows[4];
      std::uint32_t ds_rows[4];
      as_a<T>(p_rows, p[0], p[1]);
      as_a<T>(ds_rows, ds[0], ds[1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        std::uint32_t b[2];
        read_b_rows<kDepth>(b, dout_tile + first * kStride<kDepth>, n * 8);
        multiply_add<T>(dv[n], p_rows, b);
        read_b_rows<kDepth>(b, q_tile + first * kStride<kDepth>, n * 8);
        multiply_add<T>(dk[n], ds_rows, b);
      }
    }
  }
  const float scales[2] = {in.scale, in.scale};
  const float ones[2] = {1.0F, 1.0F};
  const std::int64_t to = kv_at + first_row * in.key_stride;
  write_rows<kDepth>(dk, scales, back.dk + to, in.key_stride, rows - first_row, in.head_dim);
  write_rows<kDepth>(dv, ones, back.dv + to, in.key_stride, rows - first_row, in.head_dim);
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

template <typename T>
dim3 tiles_of(const AttentionInputs<T>& in, int heads) {
  return dim3(static_cast<unsigned>((in.queries + kTile - 1) / kTile), static_cast<unsigned>(heads),
              static_cast<unsigned>(in.batch));
}

}  // namespace

template <typename T>
bool flash_takes(const AttentionInputs<T>& in, const void* out) {
  constexpr int kPerPack = 8;
  return in.head_dim <= 128 && in.head_dim % kPerPack == 0 && in.first_position == 0 &&
         in.queries == in.keys && all_aligned(in.q, in.k, in.v, out) &&
         in.query_stride % kPerPack == 0 && in.key_stride % kPerPack == 0;
}

template <typename T>
void flash_forward(const Launch& to, const AttentionInputs<T>& in, T* out, float* logsumexp) {
  with_depth(in.head_dim, [&]<int kDepth>() {
    launch("attention_forward (flash)", forward_kernel<kDepth, T>, tiles_of(in, in.query_heads),
           dim3(kTileThreads), 3 * kTileElements<kDepth> * sizeof(T), to.stream, in, out,
           logsumexp);
  });
}

template <typename T>
void flash_backward(const Launch& to, const AttentionBackward<T>& back) {
  const AttentionInputs<T>& in = back.inputs;
  with_depth(in.head_dim, [&]<int kDepth>() {
    constexpr std::size_t kShared = 4 * kTileElements<kDepth> * sizeof(T);
    launch("attention_backward (flash): dq", dq_kernel<kDepth, T>, tiles_of(in, in.query_heads),
           dim3(kTileThreads), kShared, to.stream, back);
    launch("attention_backward (flash): dk, dv", dkv_kernel<kDepth, T>,
           tiles_of(in, in.query_heads / in.group), dim3(kTileThreads), kShared, to.stream, back);
  });
}

template bool flash_takes(const AttentionInputs<BF16>&, const void*);
template bool flash_takes(const AttentionInputs<F16>&, const void*);
template void flash_forward(const Launch&, const AttentionInputs<BF16>&, BF16*, float*);
template void flash_forward(const Launch&, const AttentionInputs<F16>&, F16*, float*);
template void flash_backward(const Launch&, const AttentionBackward<BF16>&);
template void flash_backward(const Launch&, const AttentionBackward<F16>&);

}  // namespace dstrain::cuda
