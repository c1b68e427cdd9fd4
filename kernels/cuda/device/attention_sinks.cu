// A warp for each query and head. Floor: the bytes of out forward, of out and dout backward.
#include "kernels/cuda/device/attention_sinks.h"
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/math/merge_weights.h"
#include "kernels/math/vector_math.h"

namespace dstrain::cuda {
namespace {

constexpr int kWarps = 4;

/// The place of a token's head in [sequences][heads][sequence].
template <typename S>
__device__ std::int64_t sum_at(const AttentionSinks<S>& sinks, std::int64_t token, int head) {
  const std::int64_t b = token / sinks.sequence;
  return (b * sinks.heads + head) * sinks.sequence + token % sinks.sequence;
}

template <typename S, typename T>
__global__ void add_kernel(AttentionSinks<S> sinks, T* out, float* logsumexp) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;  // of out's heads
  if (row >= sinks.tokens * sinks.heads) {
    return;
  }
  const int head = static_cast<int>(row % sinks.heads);
  const std::int64_t at = sum_at(sinks, row / sinks.heads, head);
  const MergeWeights weights = merge_weights(logsumexp[at], widen(sinks.sinks[head]));
  __syncwarp();  // all lanes have read what the first one overwrites
  if (threadIdx.x % 32 == 0) {
    logsumexp[at] = weights.logsumexp;
  }
  for (int d = static_cast<int>(threadIdx.x) % 32; d < sinks.head_dim; d += 32) {
    T& element = out[row * sinks.head_dim + d];
    element = narrow<T>(weights.mine * widen(element));
  }
}

/// A block for each head and part of the tokens.
template <typename S, typename T>
__global__ void part_kernel(
    AttentionSinks<S> sinks, const T* out, const T* dout, const float* logsumexp, float* sums) {
  const int head = static_cast<int>(blockIdx.y);
  const float sink = widen(sinks.sinks[head]);
  const std::int64_t begin = std::int64_t{blockIdx.x} * kSinkTokens;
  const std::int64_t end = begin + kSinkTokens < sinks.tokens ? begin + kSinkTokens : sinks.tokens;
  float sum = 0.0F;
  for (std::int64_t token = begin + threadIdx.x / 32; token < end; token += kWarps) {
    const std::int64_t row = (token * sinks.heads + head) * sinks.head_dim;
    float delta = 0.0F;
    for (int d = static_cast<int>(threadIdx.x) % 32; d < sinks.head_dim; d += 32) {
      delta += widen(out[row + d]) * widen(dout[row + d]);
    }
    delta = warp_reduce(delta, Plus{});
    sum += fast_exp(sink - logsumexp[sum_at(sinks, token, head)]) * delta;
  }
  sum = block_sum(threadIdx.x % 32 == 0 ? sum : 0.0F);
  if (threadIdx.x == 0) {
    sums[std::int64_t{head} * gridDim.x + blockIdx.x] = sum;
  }
}

/// A warp for each head.
__global__ void total_kernel(const float* sums, std::int64_t parts, float* d_sinks, bool adds) {
  double total = 0.0;
  for (std::int64_t part = threadIdx.x; part < parts; part += 32) {
    total += static_cast<double>(sums[std::int64_t{blockIdx.x} * parts + part]);
  }
  total = warp_reduce(total, Plus{});
  if (threadIdx.x == 0) {
    d_sinks[blockIdx.x] = (adds ? d_sinks[blockIdx.x] : 0.0F) - static_cast<float>(total);
  }
}

}  // namespace

template <typename S, typename T>
void add_sinks(const Launch& to, const AttentionSinks<S>& sinks, T* out, float* logsumexp) {
  const std::int64_t rows = sinks.tokens * sinks.heads;
  launch("add_sinks", add_kernel<S, T>, dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)),
         dim3(32 * kWarps), 0, to.stream, sinks, out, logsumexp);
}

template <typename S, typename T>
void sinks_backward(const Launch& to,
                    const AttentionSinks<S>& sinks,
                    const T* out,
                    const T* dout,
                    const float* logsumexp,
                    float* sums,
                    float* d_sinks,
                    bool adds) {
  const std::int64_t parts = sink_parts(sinks.tokens);
  launch("sinks_backward: parts", part_kernel<S, T>,
         dim3(static_cast<unsigned>(parts), static_cast<unsigned>(sinks.heads)), dim3(32 * kWarps),
         0, to.stream, sinks, out, dout, logsumexp, sums);
  launch("sinks_backward: sums", total_kernel, dim3(static_cast<unsigned>(sinks.heads)), dim3(32),
         0, to.stream, sums, parts, d_sinks, adds);
}

template void add_sinks(const Launch&, const AttentionSinks<float>&, float*, float*);
template void add_sinks(const Launch&, const AttentionSinks<BF16>&, BF16*, float*);
template void add_sinks(const Launch&, const AttentionSinks<F16>&, F16*, float*);
template void add_sinks(const Launch&, const AttentionSinks<BF16>&, float*, float*);
template void add_sinks(const Launch&, const AttentionSinks<F16>&, float*, float*);
template void sinks_backward(const Launch&,
                             const AttentionSinks<float>&,
                             const float*,
                             const float*,
                             const float*,
                             float*,
                             float*,
                             bool);
template void sinks_backward(const Launch&,
                             const AttentionSinks<BF16>&,
                             const BF16*,
                             const BF16*,
                             const float*,
                             float*,
                             float*,
                             bool);
template void sinks_backward(const Launch&,
                             const AttentionSinks<F16>&,
                             const F16*,
                             const F16*,
                             const float*,
                             float*,
                             float*,
                             bool);
template void sinks_backward(const Launch&,
                             const AttentionSinks<BF16>&,
                             const float*,
                             const float*,
                             const float*,
                             float*,
                             float*,
                             bool);
template void sinks_backward(const Launch&,
                             const AttentionSinks<F16>&,
                             const float*,
                             const float*,
                             const float*,
                             float*,
                             float*,
                             bool);

}  // namespace dstrain::cuda
