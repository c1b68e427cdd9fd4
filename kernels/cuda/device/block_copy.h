// Blocks of elements moved from places to others.
#pragma once

#include <cstdint>

#include "kernels/block_copy.h"
#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

/// T: an unsigned integer as wide as an element.
template <typename T>
void copy_blocks(const Launch& to, const BlockCopy& copy, const T* from, T* written);

/// T: float, BF16 or F16.
template <typename T>
void add_blocks(const Launch& to, const BlockCopy& copy, const T* from, T* sums);

}  // namespace dstrain::cuda
