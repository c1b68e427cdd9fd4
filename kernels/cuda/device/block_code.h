// Codes floats block by block as small integers (kernels/math/block_code.h). T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/math/block_code.h"

namespace dstrain::cuda {

/// Parts of `elements` values each; both pointers at multiples of 16 bytes.
template <typename T>
void encode_blocks(const Launch& to,
                   const BlockCode& code,
                   const CodedParts& parts,
                   std::int64_t elements,
                   const T* values,
                   std::uint8_t* coded);
template <typename T>
void decode_blocks(const Launch& to,
                   const BlockCode& code,
                   const CodedParts& parts,
                   std::int64_t elements,
                   const std::uint8_t* coded,
                   T* values,
                   bool adds);

}  // namespace dstrain::cuda
