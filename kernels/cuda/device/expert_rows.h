// Rows of tokens in the order of the experts that they chose (kernels/routing.h has the meanings).
// T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

/// y[m] = x[slots[m] / per_token], times weights[slots[m]] unless they are nullptr.
template <typename T>
struct GatherRows {
  std::int64_t rows;
  std::int64_t per_token;
  std::int64_t width;
  const std::int32_t* slots;
  const float* weights;
  const T* x;
  T* y;
};
template <typename T>
void gather_rows(const Launch& to, const GatherRows<T>& gather);

/// x[n] = or += the sum over k of y[places[n][k]], times weights[n][k] unless they are nullptr.
template <typename T>
struct SumRows {
  std::int64_t tokens;
  std::int64_t per_token;
  std::int64_t width;
  const std::int32_t* places;
  const float* weights;
  const T* y;
  T* x;
  bool adds;
};
template <typename T>
void sum_rows(const Launch& to, const SumRows<T>& sum);

template <typename T>
struct WeightedRows {
  std::int64_t rows;
  std::int64_t width;
  std::int64_t outputs;  ///< 0: no bias
  const std::int32_t* slots;
  const float* weights;
  const T* row;
  T* d_row;
  const T* dy;
  const T* bias;
  const std::int32_t* chosen;
  float* d_weights;
};
template <typename T>
void weighted_rows_backward(const Launch& to, const WeightedRows<T>& back);

}  // namespace dstrain::cuda
