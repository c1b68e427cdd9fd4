// 1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1), as DeepSpeed 0.19 computes it: the
// signs and the one scale that momenta travel as, and an element's update once the variance is
// frozen. Before that the update is AdamW's (adamw.h) with both bias corrections 1.
//
// What travels is x + error, where error is what earlier steps could not express:
//   scale = ‖x + error‖ / √n, code = ±scale by the sign, error ← (x + error) - code.
// A rank codes the whole row for the others (worker), and then the mean of its chunk (server).
// n counts the padding as well, which is coded like every other element.
#pragma once

#include <cstdint>
#include <numeric>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The length that DeepSpeed pads a row of `elements` to, so that it divides into a chunk for each
/// of `ranks`: a multiple of ranks · lcm(ranks, 8), so that a chunk is whole bytes of signs.
inline std::int64_t one_bit_padded(std::int64_t elements, std::int64_t ranks) {
  const std::int64_t multiple = ranks * std::lcm(ranks, std::int64_t{8});
  return (elements + multiple - 1) / multiple * multiple;
}

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

/// Updates a master parameter with the momentum `m` that all ranks received and the frozen variance
/// `v`. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void one_bit_update(
    float learning_rate, float decay, float epsilon, F m, F v, F& master) {
  const F deviation = FloatTraits<F>::square_root(v) + epsilon;
  master = master - (decay * master + learning_rate * (m / deviation));
}

}  // namespace dstrain
