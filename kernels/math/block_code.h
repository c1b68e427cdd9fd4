// BlockCode: floats as small integers, block by block, for what travels between ranks. A block's
// elements are q · scale, with scale = max |x| / kLargest and q the nearest integer in
// [-kLargest, kLargest]. So an element is off by half a scale at most, that is by
// max |x| / 254 of its block in 8 bits and by max |x| / 14 in 4.
//
// ZeRO++ (Wang et al. 2023, sections 3.1 and 3.3) codes weights in blocks of 8 bits and gradients
// in blocks of 4. DeepSpeed's quantizer divides by 128 and 8 instead and cuts the largest positive
// number of each block down by a whole scale; here it is kept.
//
// A block that has a NaN or an infinity becomes all NaN: neither may vanish. Where a scale would be
// below f32's normal numbers, the block becomes all zero.
//
//   a part of n elements:  | codes of block 0, 1, … | scales, f32, one a block | padding |
//   8 bits: a byte an element.  4 bits: the first half of a block's elements in the low halves of
//   its bytes, the second in the high halves
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct BlockCode {
  int bits = 8;  ///< or 4

  /// Parts, and where they begin, are multiples of this many elements and bytes.
  static constexpr std::int64_t kMultiple = 16;

  /// Few enough that neighbours of very different size (norms beside matrices, rows of rare tokens)
  /// spoil little of each other: scales take 1.6 % of what codes do in 8 bits, 3.1 % in 4.
  DSTRAIN_HD static constexpr std::int64_t block() { return 256; }
  DSTRAIN_HD constexpr float largest() const { return bits == 8 ? 127.0F : 7.0F; }
  DSTRAIN_HD constexpr std::int64_t blocks(std::int64_t elements) const {
    return (elements + block() - 1) / block();
  }
  /// Bytes of the codes of a part, and with them and the scales of all of it.
  DSTRAIN_HD constexpr std::int64_t code_bytes(std::int64_t elements) const {
    return elements * bits / 8;
  }
  DSTRAIN_HD constexpr std::int64_t bytes(std::int64_t elements) const {
    const std::int64_t scales = blocks(elements) * static_cast<std::int64_t>(sizeof(float));
    return rounded_up(rounded_up(code_bytes(elements), sizeof(float)) + scales, kMultiple);
  }
  /// The first byte of the scales.
  DSTRAIN_HD constexpr std::int64_t scale_offset(std::int64_t elements) const {
    return rounded_up(code_bytes(elements), sizeof(float));
  }
  friend constexpr bool operator==(const BlockCode&, const BlockCode&) = default;

 private:
  DSTRAIN_HD static constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }
};

/// Equal parts of a tensor, each coded on its own, and where their codes are.
struct CodedParts {
  std::int64_t count = 1;
  std::int64_t stride = 1;  ///< from one to the next, in coded parts

  /// Coded parts from the first to the last, and those between them.
  [[nodiscard]] constexpr std::int64_t reach() const { return (count - 1) * stride + 1; }
};

/// The numbers that code a block.
struct BlockScale {
  float scale;    ///< by which codes are multiplied
  float inverse;  ///< by which elements are
};

/// `magnitude`: max |x|; NaN if there is one.
DSTRAIN_HD BlockScale block_scale(float magnitude, float largest) {
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr float kLeast = 0x1p-125F;  // a bit above the least normal number
  if (__builtin_bit_cast(std::uint32_t, magnitude) >= kInfinity) {
    return {__builtin_bit_cast(float, kInfinity | 0x400000U), 0.0F};
  }
  if (magnitude < largest * kLeast) {
    return {0.0F, 0.0F};
  }
  // Rounded down by a bit, so that largest · scale is never beyond what is finite.
  return {__builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, magnitude / largest) - 1U),
          largest / magnitude};
}

/// Added to a float of magnitude below 2²², leaves its nearest integer, ties to even, in the low
/// bits of the sum, as a two's complement.
inline constexpr float kToInteger = 0x1.8p23F;

}  // namespace dstrain
