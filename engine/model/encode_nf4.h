// Codes weights in 4 bits a number as they are read (kernels/math/nf4_code.h), and says what of
// them is left.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/math/nf4_code.h"

namespace dstrain {

/// `whole`: all of the matrix, row by row. `coded`: code.bytes() of the part that `code` describes.
void encode_nf4(const Nf4Code& code,
                std::span<const float> whole,
                std::span<std::byte> coded,
                int threads);

/// The numbers of the part that was coded, row by row, unrounded.
std::vector<float> decoded_nf4(const Nf4Code& code, std::span<const std::byte> coded);

}  // namespace dstrain
