// LayerNorm and RMSNorm, with the residual addition before them. T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

template <typename T>
struct NormForwardRows {
  bool centered;        ///< LayerNorm: subtract the mean; RMSNorm: do not
  float weight_offset;  ///< added to the weight
  float epsilon;
  std::int64_t rows;
  std::int64_t width;
  const T* x;
  const T* delta;  ///< nullptr: nothing to add
  const T* weight;
  const T* bias;  ///< nullptr: none
  T* residual;    ///< only written with delta; may be x
  T* y;
  float* stats;  ///< [rows][2]
};
template <typename T>
void norm_forward(const Launch& to, const NormForwardRows<T>& norm);

template <typename T>
struct NormBackwardRows {
  bool centered;
  float weight_offset;
  bool add_to_dx;
  bool has_bias;
  std::int64_t rows;
  std::int64_t width;
  const T* dy;
  const T* x;
  const T* weight;
  const float* stats;
  T* dx;
};
/// The number of partial sums that norm_backward makes: one per block, each over some of the rows.
std::int64_t norm_backward_blocks(const Launch& to, std::int64_t rows);
/// The widest row whose sums fit a block's shared memory.
constexpr std::int64_t kWidestNorm = (std::int64_t{160} << 10) / 8;
/// partials: [blocks][2 · width], each row the gradient of the weight and of the bias (has_bias).
template <typename T>
void norm_backward(const Launch& to, const NormBackwardRows<T>& norm, float* partials);

}  // namespace dstrain::cuda
