// One block a row: a pass for the largest logit and the sum of exponentials at once (online
// softmax), and one that overwrites the row with its gradient. The second finds what it reads in
// the second-level cache, so the floor is the bytes of the logits, read and written once.
//
// N tokens, V vocabulary or a slice of it, R ranks that hold the slices
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/softmax_xent.h"
#include "kernels/ignored_target.h"
#include "kernels/math/soft_cap.h"
#include "kernels/math/vector_math.h"

namespace dstrain::cuda {
namespace {

constexpr float kLowest = -3.0e38F;

/// Three numbers of stats_N3.
struct RowStats {
  float largest;
  float total;         ///< Σ exp(logit - largest)
  float target_logit;  ///< 0 where another slice has the target
};
struct RowLoss {
  float logsumexp;
  float loss;
};

/// The loss from differences of logits: it keeps digits that logsumexp, which may be large, has
/// not.
__device__ RowLoss loss_of(const RowStats& row) {
  const float log_of_total = logf(row.total);
  return {row.largest + log_of_total, log_of_total - (row.target_logit - row.largest)};
}

/// The statistics of one row, computed by the whole block; all threads get the same bits. No number
/// of the row is written before all threads have left.
template <int kWidth, typename T>
__device__ RowStats stats_of(const T* row, std::int64_t real, std::int64_t target) {
  const float target_logit = 0 <= target && target < real ? widen(row[target]) : 0.0F;
  if (real == 0) {
    return {-INFINITY, 0.0F, target_logit};
  }
  float largest = kLowest;
  float total = 0.0F;
  const auto take = [&](const auto& values) {
    float of_pack = largest;
    for (const float value : values) {
      of_pack = fmaxf(of_pack, value);
    }
    if (of_pack > largest) {
      total *= fast_exp(largest - of_pack);
      largest = of_pack;
    }
    for (const float value : values) {
      total += fast_exp(value - largest);
    }
  };
  const std::int64_t whole = real / kWidth * kWidth;
  for (std::int64_t c = threadIdx.x * kWidth; c < whole; c += blockDim.x * kWidth) {
    float values[kWidth];
    load(row + c, values);
    take(values);
  }
  if (whole + threadIdx.x < real) {
    const float values[1] = {widen(row[whole + threadIdx.x])};
    take(values);
  }
  const float of_row = block_largest(largest);
  return {of_row, block_sum(total * fast_exp(largest - of_row)), target_logit};
}

template <int kWidth, typename T>
__device__ void to_gradient(T* row,
                            std::int64_t real,
                            std::int64_t columns,
                            std::int64_t target,
                            float logsumexp,
                            float scale,
                            float cap) {
  const auto slope = [&](std::int64_t c, float logit) {
    const float p = fast_exp(logit - logsumexp);
    const float bend = cap > 0.0F ? soft_cap_slope(logit, cap) : 1.0F;
    return c >= real ? 0.0F : (c == target ? p - 1.0F : p) * (bend * scale);
  };
  const std::int64_t whole = columns / kWidth * kWidth;
  for (std::int64_t c = threadIdx.x * kWidth; c < whole; c += blockDim.x * kWidth) {
    float values[kWidth];
    load(row + c, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = slope(c + k, values[k]);
    }
    store(row + c, values);
  }
  if (whole + threadIdx.x < columns) {
    const std::int64_t c = whole + threadIdx.x;
    row[c] = narrow<T>(slope(c, widen(row[c])));
  }
}

/// The outputs that a kernel writes for its row.
template <typename T>
struct Wanted {
  float* losses;           ///< nullptr: not wanted
  RowStats* stats;         ///< likewise
  const float* logsumexp;  ///< of all slices; nullptr: this row is whole
  bool to_gradient;
  LogitGradient gradient;
};

template <int kWidth, typename T>
__global__ void cross_entropy_kernel(LogitRows<T> rows, Wanted<T> wanted, FaultPointers faults) {
  if (*faults.raised != 0) {
    return;
  }
  const std::int64_t n = blockIdx.x;
  T* const row = rows.logits + n * rows.columns;
  const bool ignored = rows.targets[n] == kIgnoredTarget;
  const std::int64_t target = rows.targets[n] - rows.first;
  float logsumexp = 0.0F;
  if (wanted.logsumexp != nullptr) {
    logsumexp = wanted.logsumexp[n];
  } else {
    // One slice with a sum of 1 makes the loss over all slices log(1).
    const RowStats stats = ignored ? RowStats{0.0F, rows.first == 0 ? 1.0F : 0.0F, 0.0F}
                                   : stats_of<kWidth>(row, rows.real, target);
    const RowLoss loss = loss_of(stats);
    logsumexp = loss.logsumexp;
    if (threadIdx.x == 0 && wanted.losses != nullptr) {
      wanted.losses[n] = loss.loss;
    }
    if (threadIdx.x == 0 && wanted.stats != nullptr) {
      wanted.stats[n] = stats;
    }
  }
  if (wanted.to_gradient) {
    to_gradient<kWidth>(row, ignored ? 0 : rows.real, rows.columns, target, logsumexp,
                        wanted.gradient.scale_of(n), wanted.gradient.cap);
  }
}

/// A thread a token, over the ranks in order. A slice of padding adds 0 times exp(-infinity), a
/// number in fast_exp.
__global__ void combine_kernel(const RowStats* stats_RN,
                               std::int64_t ranks,
                               std::int64_t tokens,
                               float* logsumexp,
                               float* losses) {
  const std::int64_t n = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens) {
    return;
  }
  RowStats whole{stats_RN[n].largest, 0.0F, 0.0F};
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    whole.largest = fmaxf(whole.largest, stats_RN[rank * tokens + n].largest);
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const RowStats slice = stats_RN[rank * tokens + n];
    whole.total += slice.total * fast_exp(slice.largest - whole.largest);
    whole.target_logit += slice.target_logit;
  }
  const RowLoss loss = loss_of(whole);
  logsumexp[n] = loss.logsumexp;
  losses[n] = loss.loss;
}

/// A thread a token.
__global__ void find_hits_kernel(const RowStats* stats_RN,
                                 std::int64_t ranks,
                                 std::int64_t tokens,
                                 const std::int32_t* targets,
                                 float* hits) {
  const std::int64_t n = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens) {
    return;
  }
  float largest = stats_RN[n].largest;
  float target_logit = 0.0F;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const RowStats slice = stats_RN[rank * tokens + n];
    largest = fmaxf(largest, slice.largest);
    target_logit += slice.target_logit;
  }
  hits[n] = targets[n] != kIgnoredTarget && target_logit >= largest ? 1.0F : 0.0F;
}

constexpr int kCountThreads = 256;

__global__ void count_targets_kernel(const std::int32_t* targets,
                                     std::int64_t n,
                                     double* total,
                                     bool adds) {
  double count = 0.0;
  for (std::int64_t i = threadIdx.x; i < n; i += kCountThreads) {
    count += targets[i] == kIgnoredTarget ? 0.0 : 1.0;
  }
  const double all = block_sum(count);
  if (threadIdx.x == 0) {
    *total = (adds ? *total : 0.0) + all;
  }
}

template <typename T>
void launch_rows(const Launch& to, const LogitRows<T>& rows, const Wanted<T>& wanted) {
  if (rows.tokens == 0) {
    return;
  }
  constexpr unsigned kMostThreads = 512;
  const dim3 grid(static_cast<unsigned>(rows.tokens));
  if (rows.columns % kPackWidth == 0 && all_aligned(rows.logits)) {
    launch("cross_entropy", cross_entropy_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(rows.columns, kPackWidth, kMostThreads)), 0, to.stream, rows,
           wanted, to.faults);
  } else {
    launch("cross_entropy", cross_entropy_kernel<1, T>, grid,
           dim3(threads_for_row(rows.columns, 1, kMostThreads)), 0, to.stream, rows, wanted,
           to.faults);
  }
}

}  // namespace

template <typename T>
void cross_entropy_losses(const Launch& to, const LogitRows<T>& rows, float* losses) {
  launch_rows(to, rows, {losses, nullptr, nullptr, false, {0.0F}});
}

template <typename T>
void cross_entropy_losses_and_gradient(const Launch& to,
                                       const LogitRows<T>& rows,
                                       const LogitGradient& gradient,
                                       float* losses) {
  launch_rows(to, rows, {losses, nullptr, nullptr, true, gradient});
}

template <typename T>
void cross_entropy_stats(const Launch& to, const LogitRows<T>& rows, float* stats_N3) {
  launch_rows(to, rows, {nullptr, reinterpret_cast<RowStats*>(stats_N3), nullptr, false, {0.0F}});
}

template <typename T>
void cross_entropy_gradient(const Launch& to,
                            const LogitRows<T>& rows,
                            const float* logsumexp,
                            const LogitGradient& gradient) {
  launch_rows(to, rows, {nullptr, nullptr, logsumexp, true, gradient});
}

void cross_entropy_combine(const Launch& to,
                           const float* stats_RN3,
                           std::int64_t ranks,
                           std::int64_t tokens,
                           float* logsumexp,
                           float* losses) {
  static_assert(sizeof(RowStats) == 3 * sizeof(float));
  if (tokens == 0) {
    return;
  }
  constexpr unsigned kThreads = 256;
  launch("cross_entropy_combine", combine_kernel,
         dim3(static_cast<unsigned>((tokens + kThreads - 1) / kThreads)), dim3(kThreads), 0,
         to.stream, reinterpret_cast<const RowStats*>(stats_RN3), ranks, tokens, logsumexp, losses);
}

void find_hits(const Launch& to,
               const float* stats_RN3,
               std::int64_t ranks,
               std::int64_t tokens,
               const std::int32_t* targets,
               float* hits) {
  if (tokens == 0) {
    return;
  }
  constexpr unsigned kThreads = 256;
  launch("find_hits", find_hits_kernel,
         dim3(static_cast<unsigned>((tokens + kThreads - 1) / kThreads)), dim3(kThreads), 0,
         to.stream, reinterpret_cast<const RowStats*>(stats_RN3), ranks, tokens, targets, hits);
}

void count_targets(
    const Launch& to, const std::int32_t* targets, std::int64_t n, double* total, bool adds) {
  launch("count_targets", count_targets_kernel, dim3(1), dim3(kCountThreads), 0, to.stream, targets,
         n, total, adds);
}

template void cross_entropy_losses(const Launch&, const LogitRows<float>&, float*);
template void cross_entropy_losses(const Launch&, const LogitRows<BF16>&, float*);
template void cross_entropy_losses(const Launch&, const LogitRows<F16>&, float*);
template void cross_entropy_losses_and_gradient(const Launch&,
                                                const LogitRows<float>&,
                                                const LogitGradient&,
                                                float*);
template void cross_entropy_losses_and_gradient(const Launch&,
                                                const LogitRows<BF16>&,
                                                const LogitGradient&,
                                                float*);
template void cross_entropy_losses_and_gradient(const Launch&,
                                                const LogitRows<F16>&,
                                                const LogitGradient&,
                                                float*);
template void cross_entropy_stats(const Launch&, const LogitRows<float>&, float*);
template void cross_entropy_stats(const Launch&, const LogitRows<BF16>&, float*);
template void cross_entropy_stats(const Launch&, const LogitRows<F16>&, float*);
template void cross_entropy_gradient(const Launch&,
                                     const LogitRows<float>&,
                                     const float*,
                                     const LogitGradient&);
template void cross_entropy_gradient(const Launch&,
                                     const LogitRows<BF16>&,
                                     const float*,
                                     const LogitGradient&);
template void cross_entropy_gradient(const Launch&,
                                     const LogitRows<F16>&,
                                     const float*,
                                     const LogitGradient&);

}  // namespace dstrain::cuda
