// The signs and the one scale that tensors travel as in 1-bit Adam (Tang et al. 2021, arXiv
// 2102.02888, algorithm 1) and its kin; the optimizers' steps are in frozen_variance.h and
// one_bit_lamb.h.
//
// What travels is x + error, where error is what earlier steps could not express:
//   scale = ‖x + error‖ / √n, code = ±scale by the sign, error ← (x + error) - code.
// A rank codes the whole row for the others (worker), and then the mean of its chunk (server).
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

/// True for +, which 0 counts as: a sign has no third value.
DSTRAIN_HD bool one_bit_sign(float x) {
  return !(x < 0.0F);
}

/// The number that a sign stands for.
DSTRAIN_HD float one_bit_value(bool sign, float scale) {
  return sign ? scale : -scale;
}

/// The signs of eight neighbours in a byte, the first in its highest bit.
DSTRAIN_HD std::uint8_t pack_signs(const float* x_8) {
  unsigned bits = 0;
  for (int i = 0; i < 8; ++i) {
    bits = (bits << 1U) | static_cast<unsigned>(one_bit_sign(x_8[i]));
  }
  return static_cast<std::uint8_t>(bits);
}

/// The sign of neighbour `i` (0 to 7) in such a byte.
DSTRAIN_HD bool packed_sign(std::uint8_t byte, int i) {
  return ((static_cast<unsigned>(byte) >> static_cast<unsigned>(7 - i)) & 1U) != 0;
}

}  // namespace dstrain
