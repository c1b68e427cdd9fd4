// A head whose rows count with length one. T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

template <typename T>
void divide_columns(
    const Launch& to, T* x, const float* squares, std::int64_t tokens, std::int64_t columns);

template <typename T>
void project_rows(const Launch& to,
                  const T* w,
                  const float* squares,
                  float* dw,
                  std::int64_t rows,
                  std::int64_t width);

}  // namespace dstrain::cuda
