// Attention that is right for every dtype, head size and alignment, in f32 and without tensor
// cores: what generation uses, what training uses in f32, and what the fast kernels
// (flash_forward.cu, flash_backward.cu) are held against. A warp goes through keys (or queries) one
// at a time, its lanes side by side over the head's columns; the warps of a block share them out
// and are added up in order.
//
// B batch, T queries of a sequence, H query heads, D head dim
#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/math/merge_weights.h"
#include "kernels/math/vector_math.h"

namespace dstrain::cuda {
namespace {

constexpr int kWarps = 4;
constexpr float kLowest = -3.0e38F;

/// A lane's columns of a head: lane, lane + 32, …
template <int kColumns>
struct Columns {
  float values[kColumns];

  template <typename T>
  __device__ void read(const T* from, int head_dim) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const int d = static_cast<int>(threadIdx.x) % 32 + 32 * k;
      values[k] = d < head_dim ? widen(from[d]) : 0.0F;
    }
  }
  /// The result is in all lanes.
  __device__ float dot(const Columns& other) const {
    float total = 0.0F;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      total += values[k] * other.values[k];
    }
    return warp_reduce(total, Plus{});
  }
  __device__ void add(float factor, const Columns& other) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      values[k] += factor * other.values[k];
    }
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      values[k] *= factor;
    }
  }
};

/// Columns of all warps, each times its factor, added in the order of the warps and written to `to`
/// by the first warp. All threads of the block call this.
template <int kColumns, typename T>
__device__ void write_sum(const Columns<kColumns>& mine, float factor, T* to, int head_dim) {
  __shared__ float of_warps[kWarps][32 * kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // of_warps may still be read, from the call before
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    of_warps[warp][lane + 32 * k] = mine.values[k] * factor;
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += 32 * kWarps) {
    float total = 0.0F;
    for (int other = 0; other < kWarps; ++other) {
      total += of_warps[other][d];
    }
    to[d] = narrow<T>(total);
  }
}

/// A score after its cap or less what it loses with distance, and how fast it moves with q · k.
struct Score {
  float value;
  float slope;
};
template <typename T>
__device__ Score score_of(const AttentionInputs<T>& in, float product, int head, int t, int u) {
  const float plain = product * in.scale;
  if (in.slopes != nullptr) {
    return {plain - in.slopes[head] * static_cast<float>(in.first_position + t - u), in.scale};
  }
  if (in.cap > 0.0F) {
    const float bent = fast_tanh(plain / in.cap);
    return {in.cap * bent, in.scale * (1.0F - bent * bent)};
  }
  return {plain, in.scale};
}

/// The keys that query t of sequence b sees: [begin, end), empty where end ≤ begin.
struct KeyRange {
  int begin;
  int end;
};
template <typename T>
__device__ KeyRange keys_seen_by(const AttentionInputs<T>& in, std::int64_t b, int t) {
  const int own = in.first_position + t;
  return {first_key_seen_by(in, b, t), own + 1 < in.keys ? own + 1 : in.keys};
}

/// The factor by which dropout multiplies the probability of key u and query t.
template <typename T>
__device__ float kept(
    const AttentionInputs<T>& in, const SampleDropout& dropout, int head, int t, int u) {
  return dropout.threshold == 0
             ? 1.0F
             : dropout_factor(dropout, static_cast<std::uint32_t>(in.first_head + head),
                              static_cast<std::uint32_t>(in.first_key + u),
                              static_cast<std::uint32_t>(in.first_query + t));
}

/// A block for each query, head and sequence.
template <int kColumns, typename T>
__global__ void forward_kernel(AttentionInputs<T> in, T* out, float* logsumexp) {
  __shared__ float largest_of_warps[kWarps];
  __shared__ float total_of_warps[kWarps];
  const int t = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t b = blockIdx.z;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const T* const q = in.q + (b * in.queries + t) * in.query_stride + head * in.head_dim;
  const T* const k = in.k + b * in.keys * in.key_stride + head / in.group * in.head_dim;
  const T* const v = in.v + b * in.keys * in.value_stride + head / in.group * in.head_dim;

  Columns<kColumns> query;
  query.read(q, in.head_dim);
  Columns<kColumns> sums{};
  float largest = kLowest;
  float total = 0.0F;
  const KeyRange seen = keys_seen_by(in, b, t);
  const SampleDropout dropout = in.dropout.of_sample(b);
  for (int u = seen.begin + warp; u < seen.end; u += kWarps) {
    Columns<kColumns> key;
    Columns<kColumns> value;
    key.read(k + u * in.key_stride, in.head_dim);
    value.read(v + u * in.value_stride, in.head_dim);
    const float score = score_of(in, query.dot(key), head, t, u).value;
    const float before = largest;
    largest = fmaxf(largest, score);
    const float shrink = fast_exp(before - largest);
    const float weight = fast_exp(score - largest);
    total = total * shrink + weight;
    sums.scale(shrink);
    sums.add(weight * kept(in, dropout, head, t, u), value);
  }
  if (threadIdx.x % 32 == 0) {
    largest_of_warps[warp] = largest;
    total_of_warps[warp] = total;
  }
  __syncthreads();
  float largest_of_all = kLowest;
  for (int other = 0; other < kWarps; ++other) {
    largest_of_all = fmaxf(largest_of_all, largest_of_warps[other]);
  }
  float total_of_all = 0.0F;
  for (int other = 0; other < kWarps; ++other) {
    total_of_all += total_of_warps[other] * fast_exp(largest_of_warps[other] - largest_of_all);
  }
  const bool sees_none = seen.end <= seen.begin;
  const float factor = sees_none ? 0.0F : fast_exp(largest - largest_of_all) / total_of_all;
  const std::int64_t heads = in.query_heads;
  write_sum(sums, factor, out + ((b * in.queries + t) * heads + head) * in.head_dim, in.head_dim);
  if (logsumexp != nullptr && threadIdx.x == 0) {
    logsumexp[(b * heads + head) * in.queries + t] =
        sees_none ? -INFINITY : largest_of_all + logf(total_of_all);
  }
}

/// delta = dout · out (Dao 2023, equation 4); a warp for each query, head and sequence.
template <int kColumns, typename T>
__global__ void delta_kernel(AttentionBackward<T> back) {
  const AttentionInputs<T>& in = back.inputs;
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;  // of out's heads
  const std::int64_t heads = in.query_heads;
  if (row >= in.batch * in.queries * heads) {
    return;
  }
  Columns<kColumns> out;
  Columns<kColumns> dout;
  out.read(back.out + row * in.head_dim, in.head_dim);
  dout.read(back.dout + row * in.head_dim, in.head_dim);
  const float delta = out.dot(dout);
  if (threadIdx.x % 32 == 0) {
    const std::int64_t token = row / heads;
    const std::int64_t b = token / in.queries;
    back.delta[(b * heads + row % heads) * in.queries + token % in.queries] = delta;
  }
}

/// For one query and key, `kept` being dropout's factor: p = exp(score - logsumexp) · kept, what v
/// was multiplied with; dS = exp(score - logsumexp) (kept dout · v - delta) · slope.
struct Pair {
  float p;
  float ds;
};
template <int kColumns, typename T>
__device__ Pair pair_of(const AttentionInputs<T>& in,
                        int head,
                        int t,
                        int u,
                        const Columns<kColumns>& q,
                        const Columns<kColumns>& k,
                        const Columns<kColumns>& v,
                        const Columns<kColumns>& dout,
                        float logsumexp,
                        float delta,
                        float kept) {
  const Score score = score_of(in, q.dot(k), head, t, u);
  const float p = fast_exp(score.value - logsumexp);
  return {p * kept, p * (kept * dout.dot(v) - delta) * score.slope};
}

/// dQ = Σ over keys of dS K: a block for each query, head and sequence.
template <int kColumns, typename T>
__global__ void dq_kernel(AttentionBackward<T> back) {
  const AttentionInputs<T>& in = back.inputs;
  const int t = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t b = blockIdx.z;
  const std::int64_t q_at = (b * in.queries + t) * in.query_stride + head * in.head_dim;
  const T* const k = in.k + b * in.keys * in.key_stride + head / in.group * in.head_dim;
  const T* const v = in.v + b * in.keys * in.value_stride + head / in.group * in.head_dim;
  const std::int64_t heads = in.query_heads;
  const std::int64_t row = (b * heads + head) * in.queries + t;

  Columns<kColumns> query;
  Columns<kColumns> dout;
  query.read(in.q + q_at, in.head_dim);
  dout.read(back.dout + ((b * in.queries + t) * heads + head) * in.head_dim, in.head_dim);
  Columns<kColumns> sums{};
  const KeyRange seen = keys_seen_by(in, b, t);
  const SampleDropout dropout = in.dropout.of_sample(b);
  for (int u = seen.begin + static_cast<int>(threadIdx.x) / 32; u < seen.end; u += kWarps) {
    Columns<kColumns> key;
    Columns<kColumns> value;
    key.read(k + u * in.key_stride, in.head_dim);
    value.read(v + u * in.value_stride, in.head_dim);
    const Pair pair = pair_of(in, head, t, u, query, key, value, dout, back.logsumexp[row],
                              back.delta[row], kept(in, dropout, head, t, u));
    sums.add(pair.ds, key);
  }
  write_sum(sums, 1.0F,
            back.dq + (b * in.queries + t) * back.dq_stride + std::int64_t{head} * in.head_dim,
            in.head_dim);
}

/// dK = Σ over queries of dS Q and dV = Σ p dout: a block for each key, key/value head and
/// sequence, over the group's query heads and their queries in order.
template <int kColumns, typename T>
__global__ void dkv_kernel(AttentionBackward<T> back) {
  const AttentionInputs<T>& in = back.inputs;
  const int u = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t b = blockIdx.z;
  const std::int64_t row_of_key = b * in.keys + u;
  const std::int64_t first = std::int64_t{kv_head} * in.head_dim;
  const std::int64_t heads = in.query_heads;

  Columns<kColumns> key;
  Columns<kColumns> value;
  key.read(in.k + row_of_key * in.key_stride + first, in.head_dim);
  value.read(in.v + row_of_key * in.value_stride + first, in.head_dim);
  Columns<kColumns> dk{};
  Columns<kColumns> dv{};
  // Queries [earliest, earliest + count) see this key: those at its position and, through a window,
  // not long after it.
  const int own = u - in.first_position;
  const int earliest = own > 0 ? own : 0;
  const int end = own < in.queries - in.window ? own + in.window : in.queries;
  const int count = end > earliest ? end - earliest : 0;
  const SampleDropout dropout = in.dropout.of_sample(b);
  for (int i = static_cast<int>(threadIdx.x) / 32; i < in.group * count; i += kWarps) {
    const int head = kv_head * in.group + i / count;
    const int t = earliest + i % count;
    if (u < first_key_seen_by(in, b, t)) {
      continue;
    }
    Columns<kColumns> query;
    Columns<kColumns> dout;
    query.read(in.q + (b * in.queries + t) * in.query_stride + head * in.head_dim, in.head_dim);
    dout.read(back.dout + ((b * in.queries + t) * heads + head) * in.head_dim, in.head_dim);
    const std::int64_t row = (b * heads + head) * in.queries + t;
    const Pair pair = pair_of(in, head, t, u, query, key, value, dout, back.logsumexp[row],
                              back.delta[row], kept(in, dropout, head, t, u));
    dk.add(pair.ds, query);
    dv.add(pair.p, dout);
  }
  write_sum(dk, 1.0F, back.dk + row_of_key * back.dk_stride + first, in.head_dim);
  write_sum(dv, 1.0F, back.dv + row_of_key * back.dv_stride + first, in.head_dim);
}

/// A warp for each query, head and sequence.
template <typename T>
__global__ void merge_kernel(std::int64_t rows,
                             int queries,
                             int heads,
                             int head_dim,
                             const T* other_out,
                             const float* other_logsumexp,
                             T* out,
                             float* logsumexp) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;  // of out's heads
  if (row >= rows) {
    return;
  }
  const std::int64_t token = row / heads;
  const std::int64_t b = token / queries;
  const std::int64_t at = (b * heads + row % heads) * queries + token % queries;
  const MergeWeights weights = merge_weights(logsumexp[at], other_logsumexp[at]);
  __syncwarp();  // all lanes have read what the first one overwrites
  if (threadIdx.x % 32 == 0) {
    logsumexp[at] = weights.logsumexp;
  }
  for (int d = static_cast<int>(threadIdx.x) % 32; d < head_dim; d += 32) {
    const std::int64_t i = row * head_dim + d;
    out[i] = narrow<T>(weights.mine * widen(out[i]) + weights.others * widen(other_out[i]));
  }
}

template <typename T>
__global__ void append_kernel(const T* rows,
                              std::int64_t row_stride,
                              T* cache,
                              std::int64_t width) {
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    cache[std::int64_t{blockIdx.x} * width + c] = rows[std::int64_t{blockIdx.x} * row_stride + c];
  }
}

/// Kernels are made for heads of up to 128 columns and of up to 256.
template <typename F>
void with_columns(int head_dim, F&& f) {
  if (head_dim <= 128) {
    f.template operator()<4>();
  } else {
    f.template operator()<8>();
  }
}

template <typename T>
dim3 grid_of(int rows, int heads, const AttentionInputs<T>& in) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads),
              static_cast<unsigned>(in.batch));
}

}  // namespace

template <typename T>
void attention_forward(const Launch& to, const AttentionInputs<T>& in, T* out, float* logsumexp) {
  with_columns(in.head_dim, [&]<int kColumns>() {
    launch("attention_forward", forward_kernel<kColumns, T>,
           grid_of(in.queries, in.query_heads, in), dim3(32 * kWarps), 0, to.stream, in, out,
           logsumexp);
  });
}

template <typename T>
void attention_delta(const Launch& to, const AttentionBackward<T>& back) {
  const AttentionInputs<T>& in = back.inputs;
  const std::int64_t rows = std::int64_t{in.batch} * in.queries * in.query_heads;
  with_columns(in.head_dim, [&]<int kColumns>() {
    launch("attention_backward: delta", delta_kernel<kColumns, T>,
           dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), dim3(32 * kWarps), 0,
           to.stream, back);
  });
}

template <typename T>
void attention_backward(const Launch& to, const AttentionBackward<T>& back) {
  const AttentionInputs<T>& in = back.inputs;
  const dim3 block(32 * kWarps);
  with_columns(in.head_dim, [&]<int kColumns>() {
    launch("attention_backward: dq", dq_kernel<kColumns, T>,
           grid_of(in.queries, in.query_heads, in), block, 0, to.stream, back);
    launch("attention_backward: dk, dv", dkv_kernel<kColumns, T>,
           grid_of(in.keys, in.query_heads / in.group, in), block, 0, to.stream, back);
  });
}

template <typename T>
void merge_attention(const Launch& to,
                     int batch,
                     int queries,
                     int query_heads,
                     int head_dim,
                     const T* other_out,
                     const float* other_logsumexp,
                     T* out,
                     float* logsumexp) {
  const std::int64_t rows = std::int64_t{batch} * queries * query_heads;
  launch("merge_attention", merge_kernel<T>,
         dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), dim3(32 * kWarps), 0, to.stream,
         rows, queries, query_heads, head_dim, other_out, other_logsumexp, out, logsumexp);
}

template <typename T>
void append_to_cache(const Launch& to,
                     const T* rows,
                     std::int64_t row_stride,
                     T* cache,
                     std::int64_t count,
                     std::int64_t width) {
  launch("attention_cached: append", append_kernel<T>, dim3(static_cast<unsigned>(count)),
         dim3(threads_for_row(width, 1, 256)), 0, to.stream, rows, row_stride, cache, width);
}

template void attention_forward(const Launch&, const AttentionInputs<float>&, float*, float*);
template void attention_forward(const Launch&, const AttentionInputs<BF16>&, BF16*, float*);
template void attention_forward(const Launch&, const AttentionInputs<F16>&, F16*, float*);
template void attention_delta(const Launch&, const AttentionBackward<float>&);
template void attention_delta(const Launch&, const AttentionBackward<BF16>&);
template void attention_delta(const Launch&, const AttentionBackward<F16>&);
template void attention_backward(const Launch&, const AttentionBackward<float>&);
template void attention_backward(const Launch&, const AttentionBackward<BF16>&);
template void attention_backward(const Launch&, const AttentionBackward<F16>&);
template void merge_attention(
    const Launch&, int, int, int, int, const float*, const float*, float*, float*);
template void merge_attention(
    const Launch&, int, int, int, int, const BF16*, const float*, BF16*, float*);
template void merge_attention(
    const Launch&, int, int, int, int, const F16*, const float*, F16*, float*);
template void append_to_cache(
    const Launch&, const float*, std::int64_t, float*, std::int64_t, std::int64_t);
template void append_to_cache(
    const Launch&, const BF16*, std::int64_t, BF16*, std::int64_t, std::int64_t);
template void append_to_cache(
    const Launch&, const F16*, std::int64_t, F16*, std::int64_t, std::int64_t);

}  // namespace dstrain::cuda
