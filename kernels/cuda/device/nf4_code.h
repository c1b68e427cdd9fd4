// Matrices in 4 bits a number (kernels/math/nf4_code.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/nf4_code.h"

namespace dstrain::cuda {

/// T: float, BF16 or F16.
template <typename T>
void decode_nf4(const Launch& to, const Nf4Code& code, const std::uint8_t* coded, T* values);

}  // namespace dstrain::cuda
