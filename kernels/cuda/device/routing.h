// How tokens choose experts, and the order of their rows (kernels/routing.h has the meanings). T:
// float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/math/router.h"

namespace dstrain::cuda {

struct Router {
  RouterRule rule;
  std::int64_t tokens;
  std::int64_t experts;
  // Not of choose_experts (RouterSizes):
  std::int64_t piece;
  std::int64_t length;
  CountedPieces counted;
  const float* logits;
};

void choose_experts(const Launch& to,
                    const Router& router,
                    const float* bias,  ///< nullptr: none
                    float* logsumexp,
                    std::int32_t* chosen,
                    float* weights);

void measure_experts(const Launch& to,
                     const Router& router,
                     const float* logsumexp,
                     const std::int32_t* chosen,
                     std::int32_t* counts,
                     const std::int32_t* ranks_counts,  ///< nullptr: counts
                     float* balance);                   ///< nullptr: not wanted

template <typename T>
struct ChoiceGradient {
  const float* logsumexp;
  const std::int32_t* chosen;
  const float* weights;
  const float* d_weights;
  const std::int32_t* counts;
  float share_scale;  ///< d loss / d share of an expert, over its count
  float z_scale;
  T* d_logits;
};
template <typename T>
void choose_experts_backward(const Launch& to,
                             const Router& router,
                             const ChoiceGradient<T>& gradient);

struct Order {
  std::int64_t slots;
  std::int64_t experts;
  std::int64_t sequences;
  std::int64_t capacity;  ///< 0: none
  const std::int32_t* chosen;
  const std::int32_t* counts;
  std::int32_t* rows;
  std::int32_t* sorted_slots;
  std::int32_t* places;
};
/// `starts`: scratch [sequences][experts].
void order_by_expert(const Launch& to, const Order& order, std::int32_t* starts);

}  // namespace dstrain::cuda
