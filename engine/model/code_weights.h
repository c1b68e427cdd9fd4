// Codes weights in few bits a number as they are read (kernels/math/weight_code.h), and says what
// of them is left.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/math/weight_code.h"

namespace dstrain {

/// `whole`: all of the matrix, row by row. `coded`: bytes_of(code) of the part that `code`
/// describes.
void code_weights(const WeightCode& code,
                  std::span<const float> whole,
                  std::span<std::byte> coded,
                  int threads);

/// The numbers of the part that was coded, row by row, unrounded.
std::vector<float> decoded_weights(const WeightCode& code, std::span<const std::byte> coded);

}  // namespace dstrain
