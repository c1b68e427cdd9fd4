// How tokens choose experts: a warp a token; and the order of their rows: a block an expert of a
// sequence, which counts the slots before each of its own, so that no atomics are needed and the
// order is the same on every run.
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/routing.h"

namespace dstrain::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreads = 256;

struct Best {
  float score;
  int index;  ///< -1: none
};
struct BetterOf {
  __device__ Best operator()(Best a, Best b) const {
    if (b.index < 0 || (a.index >= 0 && a.score > b.score)) return a;
    if (a.index < 0 || b.score > a.score) return b;
    return a.index < b.index ? a : b;
  }
};

/// The best of `count` that is allowed, the same in every lane; of equal ones the first.
__device__ Best best_of(const float* scores, const char* allowed, int count) {
  const BetterOf better;
  Best best{0.0F, -1};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) {
    if (allowed[i] != 0) {
      best = better(best, Best{scores[i], i});
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Best other{__shfl_xor_sync(kWholeWarp, best.score, distance),
                     __shfl_xor_sync(kWholeWarp, best.index, distance)};
    best = better(best, other);
  }
  return best;
}

template <typename Take>
__device__ void take_best(
    int taken, const float* scores, char* allowed, int count, const Take& take) {
  for (int k = 0; k < taken; ++k) {
    const int best = best_of(scores, allowed, count).index;
    take(k, best);
    __syncthreads();
    if (threadIdx.x == 0) {
      allowed[best] = 0;
    }
    __syncthreads();
  }
}

__device__ float group_score(const float* scores, int size, bool by_two) {
  float best = scores[0];
  float second = -__builtin_huge_valf();
  for (int e = 1; e < size; ++e) {
    if (scores[e] > best) {
      second = best;
      best = scores[e];
    } else if (scores[e] > second) {
      second = scores[e];
    }
  }
  return by_two && size > 1 ? best + second : best;
}

/// Returns log Σ exp(logit) of a token where scores are a softmax, log Σ σ(logit) where they are
/// sigmoids; the same in every lane.
__device__ float logsumexp_of(const RouterRule& rule, const float* logits, int experts) {
  const int lane = static_cast<int>(threadIdx.x);
  float largest = logits[0];
  float total = 0.0F;
  if (rule.sigmoid) {
    for (int e = lane; e < experts; e += kWarp) {
      total += sigmoid(logits[e]);
    }
    return router_log_total(warp_reduce(total, Plus{}));
  }
  for (int e = lane; e < experts; e += kWarp) {
    largest = fmaxf(largest, logits[e]);
  }
  largest = warp_reduce(largest, Larger{});
  for (int e = lane; e < experts; e += kWarp) {
    total += fast_exp(logits[e] - largest);
  }
  return largest + logf(warp_reduce(total, Plus{}));
}

__global__ void choose_kernel(
    Router router, const float* bias, float* logsumexps, std::int32_t* chosen, float* weights) {
  const RouterRule rule = router.rule;
  const int experts = static_cast<int>(router.experts);
  const int groups = static_cast<int>(rule.groups);
  const int per_token = static_cast<int>(rule.per_token);
  const int lane = static_cast<int>(threadIdx.x);
  auto* const scores = dynamic_shared<float>();  // [experts], group_scores [groups], own [K]
  float* const group_scores = scores + experts;
  float* const own = group_scores + groups;
  auto* const allowed = reinterpret_cast<char*>(own + per_token);  // [experts], then [groups]
  char* const allowed_groups = allowed + experts;
  const std::int64_t n = blockIdx.x;
  const float* const logits = router.logits + n * experts;

  const float logsumexp = logsumexp_of(rule, logits, experts);
  if (lane == 0) {
    logsumexps[n] = logsumexp;
  }
  for (int e = lane; e < experts; e += kWarp) {
    const float added = bias == nullptr ? 0.0F : bias[e];
    scores[e] = choosable(router_score(rule, logsumexp, logits[e]) + added);
    allowed[e] = groups == 1 ? 1 : 0;
  }
  __syncthreads();
  if (groups > 1) {
    const int size = experts / groups;
    for (int g = lane; g < groups; g += kWarp) {
      group_scores[g] = group_score(scores + g * size, size, rule.group_by_two);
      allowed_groups[g] = 1;
    }
    __syncthreads();
    take_best(static_cast<int>(rule.chosen_groups), group_scores, allowed_groups, groups,
              [&](int /*k*/, int g) {
                for (int e = lane; e < size; e += kWarp) {
                  allowed[g * size + e] = 1;
                }
              });
  }
  float sum = 0.0F;
  take_best(per_token, scores, allowed, experts, [&](int k, int e) {
    const float score = router_score(rule, logsumexp, logits[e]);
    sum += score;
    if (lane == 0) {
      own[k] = score;
      chosen[n * per_token + k] = e;
    }
  });
  const float factor = router_weight_factor(rule, sum);
  for (int k = lane; k < per_token; k += kWarp) {
    weights[n * per_token + k] = own[k] * factor;
  }
}

__global__ void measure_kernel(Router router,
                               const float* logsumexp,
                               const std::int32_t* chosen,
                               std::int32_t* counts,
                               const std::int32_t* ranks_counts,
                               float* balance) {
  const std::int64_t expert = blockIdx.x;
  const std::int64_t piece = blockIdx.y;
  const std::int64_t per_token = router.rule.per_token;
  const std::int64_t first = piece * router.piece;
  int count = 0;
  for (std::int64_t slot = threadIdx.x; slot < router.piece * per_token; slot += blockDim.x) {
    count += chosen[first * per_token + slot] == expert ? 1 : 0;
  }
  count = block_sum(count);
  const std::int64_t at = piece * router.experts + expert;
  if (threadIdx.x == 0) {
    counts[at] = count;
  }
  if (balance == nullptr) {
    return;
  }
  float share = 0.0F;
  for (std::int64_t n = first + threadIdx.x; n < first + router.piece; n += blockDim.x) {
    share += router_share(router.rule, logsumexp[n], router.logits[n * router.experts + expert]);
  }
  share = block_sum(share);
  if (threadIdx.x == 0) {
    const float length = static_cast<float>(router.length);
    if (ranks_counts != nullptr) {
      count = SequenceCounts(router.counted, router.experts, ranks_counts, piece).of(expert);
    }
    balance[at] = static_cast<float>(router.experts) * (static_cast<float>(count) / length) *
                  (share / length);
  }
}

template <typename T>
__global__ void choose_backward_kernel(Router router, ChoiceGradient<T> back) {
  const RouterRule rule = router.rule;
  const int experts = static_cast<int>(router.experts);
  const int per_token = static_cast<int>(rule.per_token);
  const int lane = static_cast<int>(threadIdx.x);
  auto* const d_scores = dynamic_shared<float>();  // [experts]
  const std::int64_t n = blockIdx.x;
  const float* const logits = router.logits + n * experts;
  const std::int32_t* const chosen = back.chosen + n * per_token;
  for (int e = lane; e < experts; e += kWarp) {
    d_scores[e] = 0.0F;
  }
  RouterRowGradient row{back.logsumexp[n], 0.0F, 0.0F, 0.0F};
  row.d_logsumexp = 2.0F * back.z_scale * row.logsumexp;
  float score_sum = 0.0F;
  float weighted_sum = 0.0F;
  for (int k = lane; k < per_token; k += kWarp) {
    score_sum += router_score(rule, row.logsumexp, logits[chosen[k]]);
    weighted_sum += back.d_weights[n * per_token + k] * back.weights[n * per_token + k];
  }
  const float factor = router_weight_factor(rule, warp_reduce(score_sum, Plus{}));
  weighted_sum = warp_reduce(weighted_sum, Plus{});
  __syncthreads();
  for (int k = lane; k < per_token; k += kWarp) {
    const float d =
        router_score_gradient(rule, factor, weighted_sum, back.d_weights[n * per_token + k]);
    d_scores[chosen[k]] = d;
    row.chosen_sum += router_score(rule, row.logsumexp, logits[chosen[k]]) * d;
  }
  row.chosen_sum = warp_reduce(row.chosen_sum, Plus{});
  const SequenceCounts counts(router.counted, experts, back.counts, n / router.piece);
  const auto d_share = [&](int e) { return back.share_scale * static_cast<float>(counts.of(e)); };
  for (int e = lane; e < experts; e += kWarp) {
    row.balance_mean += router_share(rule, row.logsumexp, logits[e]) * d_share(e);
  }
  row.balance_mean = warp_reduce(row.balance_mean, Plus{});
  __syncthreads();
  for (int e = lane; e < experts; e += kWarp) {
    back.d_logits[n * experts + e] =
        narrow<T>(router_logit_gradient(rule, row, logits[e], d_scores[e], d_share(e)));
  }
}

__device__ std::int32_t taken_of(const Order& order, std::int32_t count) {
  return order.capacity == 0 || count < order.capacity ? count
                                                       : static_cast<std::int32_t>(order.capacity);
}

/// One block: the rows of each expert, and where those of each sequence begin.
__global__ void starts_kernel(Order order, std::int32_t* starts) {
  for (std::int64_t e = threadIdx.x; e < order.experts; e += blockDim.x) {
    std::int32_t rows = 0;
    for (std::int64_t b = 0; b < order.sequences; ++b) {
      starts[b * order.experts + e] = rows;
      rows += taken_of(order, order.counts[b * order.experts + e]);
    }
    order.rows[e] = rows;
  }
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < order.experts; e += blockDim.x) {
    std::int32_t before = 0;
    for (std::int64_t other = 0; other < e; ++other) {
      before += order.rows[other];
    }
    for (std::int64_t b = 0; b < order.sequences; ++b) {
      starts[b * order.experts + e] += before;
    }
  }
}

/// The number of threads before this one whose flag is set, and of all.
struct Flagged {
  int before;
  int total;
};
__device__ Flagged flagged(int flag) {
  __shared__ int of_warps[kThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  Flagged sum{0, flag};
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_xor_sync(kWholeWarp, sum.total, static_cast<int>(distance));
    sum.before += (lane & distance) != 0 ? other : 0;
    sum.total += other;
  }
  __syncthreads();  // of_warps may still be read, from the call before
  if (lane == 0) {
    of_warps[warp] = sum.total;
  }
  __syncthreads();
  sum.total = 0;
#pragma unroll
  for (unsigned k = 0; k < kThreads / kWarp; ++k) {
    sum.before += k < warp ? of_warps[k] : 0;
    sum.total += of_warps[k];
  }
  return sum;
}

__global__ void place_kernel(Order order, const std::int32_t* starts) {
  const std::int64_t expert = blockIdx.x;
  const std::int64_t sequence = blockIdx.y;
  const std::int64_t slots = order.slots / order.sequences;
  const std::int64_t at = sequence * order.experts + expert;
  const std::int32_t most = taken_of(order, order.counts[at]);
  std::int32_t before = 0;
  for (std::int64_t first = 0; first < slots; first += kThreads) {
    const std::int64_t slot = sequence * slots + first + threadIdx.x;
    const bool mine = first + threadIdx.x < slots && order.chosen[slot] == expert;
    const Flagged sum = flagged(mine ? 1 : 0);
    if (mine) {
      const std::int32_t index = before + sum.before;
      const std::int32_t place = index < most ? starts[at] + index : -1;
      order.places[slot] = place;
      if (place >= 0) {
        order.sorted_slots[place] = static_cast<std::int32_t>(slot);
      }
    }
    before += sum.total;
  }
}

dim3 grid_of(std::int64_t x, std::int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

}  // namespace

void choose_experts(const Launch& to,
                    const Router& router,
                    const float* bias,
                    float* logsumexp,
                    std::int32_t* chosen,
                    float* weights) {
  if (router.tokens == 0) {
    return;
  }
  const std::int64_t floats = router.experts + router.rule.groups + router.rule.per_token;
  const std::int64_t shared = floats * 4 + router.experts + router.rule.groups;
  launch("choose_experts", choose_kernel, grid_of(router.tokens), dim3(kWarp),
         static_cast<std::size_t>(shared), to.stream, router, bias, logsumexp, chosen, weights);
}

void measure_experts(const Launch& to,
                     const Router& router,
                     const float* logsumexp,
                     const std::int32_t* chosen,
                     std::int32_t* counts,
                     const std::int32_t* ranks_counts,
                     float* balance) {
  const std::int64_t pieces = router.piece == 0 ? 0 : router.tokens / router.piece;
  if (pieces == 0) {
    return;
  }
  launch("measure_experts", measure_kernel, grid_of(router.experts, pieces), dim3(kThreads), 0,
         to.stream, router, logsumexp, chosen, counts, ranks_counts, balance);
}

template <typename T>
void choose_experts_backward(const Launch& to,
                             const Router& router,
                             const ChoiceGradient<T>& gradient) {
  if (router.tokens == 0) {
    return;
  }
  launch("choose_experts_backward", choose_backward_kernel<T>, grid_of(router.tokens), dim3(kWarp),
         static_cast<std::size_t>(router.experts * 4), to.stream, router, gradient);
}

void order_by_expert(const Launch& to, const Order& order, std::int32_t* starts) {
  launch("order_by_expert", starts_kernel, dim3(1), dim3(kThreads), 0, to.stream, order, starts);
  if (order.slots > 0) {
    launch("order_by_expert", place_kernel, grid_of(order.experts, order.sequences), dim3(kThreads),
           0, to.stream, order, static_cast<const std::int32_t*>(starts));
  }
}

template void choose_experts_backward(const Launch&, const Router&, const ChoiceGradient<float>&);
template void choose_experts_backward(const Launch&, const Router&, const ChoiceGradient<BF16>&);
template void choose_experts_backward(const Launch&, const Router&, const ChoiceGradient<F16>&);

}  // namespace dstrain::cuda
