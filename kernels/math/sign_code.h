// Sign codes: a tensor as the signs of its elements and one scale for all of them, an eighth of a
// byte an element, for what travels between ranks (1-bit SGD, Seide et al. 2014; 1-bit Adam, Tang
// et al. 2021, arXiv 2102.02888, section 4).
//
//   scale = ‖x‖ / √n, code = ±scale by the sign, and what the code leaves out is x - code.
//
// The scale gives the code the length of x. What is left out stays with the rank that codes, which
// adds it to the next x: so nothing is lost, but comes late.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

/// Where one tensor's signs and its scale lie in messages, of which there is one for each of
/// `count` ranks. All of `coded` begins at a multiple of 4 bytes.
struct SignParts {
  std::int64_t count = 1;  ///< messages
  /// Elements of the tensor that each message has, but the last ones, which have what is left, or
  /// nothing; a multiple of 8.
  std::int64_t chunk = 0;
  std::int64_t stride = 0;  ///< bytes from a message to the next, a multiple of 4
  std::int64_t signs = 0;   ///< bytes from a message's beginning to the tensor's signs
  std::int64_t scale = 0;   ///< likewise to its scale (f32), a multiple of 4

  /// Bytes of the tensor's signs in each message, in the last ones too.
  DSTRAIN_HD constexpr std::int64_t sign_bytes() const { return chunk / 8; }
  /// Elements of the tensor that message `index` has.
  DSTRAIN_HD constexpr std::int64_t elements_of(std::int64_t index, std::int64_t elements) const {
    const std::int64_t left = elements - index * chunk;
    return left < 0 ? 0 : left < chunk ? left : chunk;
  }
};

/// The scale of `elements` numbers whose squares sum up to `squares`; 0 of none.
DSTRAIN_HD float sign_scale(double squares, std::int64_t elements) {
  return elements == 0
             ? 0.0F
             : static_cast<float>(__builtin_sqrt(squares / static_cast<double>(elements)));
}

/// True for +, which 0 counts as: a sign has no third value. So does NaN.
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
