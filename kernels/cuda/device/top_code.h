// The largest numbers of each block (kernels/math/top_code.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/top_code.h"

namespace dstrain::cuda {

void encode_largest(
    const Launch& to, const TopCode& code, std::int64_t n, float* values, std::uint8_t* coded);
void sum_largest(const Launch& to,
                 const TopCode& code,
                 std::int64_t messages,
                 std::int64_t n,
                 const std::uint8_t* coded,
                 float factor,
                 float* values);

}  // namespace dstrain::cuda
