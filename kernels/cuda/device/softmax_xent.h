// Softmax cross-entropy of rows of logits, whole or a slice of the vocabulary. T: float, BF16, F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/logit_gradient.h"

namespace dstrain::cuda {

template <typename T>
struct LogitRows {
  T* logits;  ///< only written for the gradient
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t real;   ///< columns that are not padding
  std::int64_t first;  ///< the entry of the vocabulary that column 0 is
  const std::int32_t* targets;
};

template <typename T>
void cross_entropy_losses(const Launch& to, const LogitRows<T>& rows, float* losses);
template <typename T>
void cross_entropy_losses_and_gradient(const Launch& to,
                                       const LogitRows<T>& rows,
                                       const LogitGradient& gradient,
                                       float* losses);
template <typename T>
void cross_entropy_stats(const Launch& to, const LogitRows<T>& rows, float* stats_N3);
template <typename T>
void cross_entropy_gradient(const Launch& to,
                            const LogitRows<T>& rows,
                            const float* logsumexp,
                            const LogitGradient& gradient);
void cross_entropy_combine(const Launch& to,
                           const float* stats_RN3,
                           std::int64_t ranks,
                           std::int64_t tokens,
                           float* logsumexp,
                           float* losses);

/// hits[n] = 1 where no logit is larger than the target's.
void find_hits(const Launch& to,
               const float* stats_RN3,
               std::int64_t ranks,
               std::int64_t tokens,
               const std::int32_t* targets,
               float* hits);

/// *total = or += the targets that are not kIgnoredTarget.
void count_targets(
    const Launch& to, const std::int32_t* targets, std::int64_t n, double* total, bool adds);

}  // namespace dstrain::cuda
