// Converts to 8-bit floats (kernels/core/f8.h). T: float, BF16 or F16; F8: F8E4M3 or F8E5M2.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/core/f8.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

template <typename T, typename F8>
struct Quantize {
  const T* x;          ///< [rows][columns], at a multiple of 16 bytes
  const float* scale;  ///< unused where both q are nullptr
  F8* q;               ///< [rows][columns]; nullptr: not wanted
  F8* transposed;      ///< [columns][rows]; likewise
  float* amax;
  std::int64_t rows;  ///< it and columns multiples of 16 where `transposed` is wanted
  std::int64_t columns;
};
template <typename T, typename F8>
void quantize(const Launch& to, const Quantize<T, F8>& work);

}  // namespace dstrain::cuda
