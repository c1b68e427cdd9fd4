// Matrices in 8 bits a number (kernels/math/int8_code.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/int8_code.h"

namespace dstrain::cuda {

/// T: float, BF16 or F16.
template <typename T>
void decode_int8(const Launch& to, const Int8Code& code, const std::uint8_t* coded, T* values);

}  // namespace dstrain::cuda
