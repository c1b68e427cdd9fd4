// RMS norms of groups of columns. T: float, BF16 or F16.
#pragma once

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/group_norm_rows.h"

namespace dstrain::cuda {

/// squares: [rows][groups].
template <typename T>
void group_squares(const Launch& to, const GroupNormRows<T>& norm, float* squares);
/// products: [rows][groups].
template <typename T>
void group_products(const Launch& to, const GroupNormRows<T>& norm, float* products);
template <typename T>
void group_norm_forward(const Launch& to, const GroupNormRows<T>& norm);

/// The number of partial sums of the weight's gradient that group_norm_backward makes.
template <typename T>
std::int64_t group_norm_backward_blocks(const Launch& to, const GroupNormRows<T>& norm);
/// The widest group whose sums fit a block's shared memory.
constexpr std::int64_t kWidestGroup = (std::int64_t{160} << 10) / 4;
/// partials: [group_norm_backward_blocks()][width].
template <typename T>
void group_norm_backward(const Launch& to, const GroupNormRows<T>& norm, float* partials);

}  // namespace dstrain::cuda
