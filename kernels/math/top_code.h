// Top codes: the largest numbers of each block of a tensor, with their places, for what travels
// between ranks ("top-k", Aji & Heafield 2017, arXiv 1704.05021; with what is left out added to the
// next tensor, Stich et al. 2018, arXiv 1809.07599).
//
// The k largest of n numbers keep at least k / n of the sum of squares, which is all that Stich et
// al. ask of a code (definition 2.1). That holds for each block, and so for the tensor: no rank
// sorts a tensor, and a message's length depends on the tensor's alone.
//
//   a message:  | values of block 0, 1, …, f32 | places within their blocks, u16 | padding, 0 |
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct TopCode {
  std::int64_t keep = 41;  ///< of each block, 1 to kBlock; 1 %

  static constexpr std::int64_t kBlock = 4096;
  /// Messages are multiples of this many bytes.
  static constexpr std::int64_t kMultiple = 16;

  DSTRAIN_HD constexpr std::int64_t blocks(std::int64_t elements) const {
    return (elements + kBlock - 1) / kBlock;
  }
  /// Numbers sent of a block of `size`.
  DSTRAIN_HD constexpr std::int64_t sent(std::int64_t size) const {
    return size < keep ? size : keep;
  }
  /// Numbers sent of a tensor. Those of block b begin at number b · keep.
  DSTRAIN_HD constexpr std::int64_t entries(std::int64_t elements) const {
    return elements / kBlock * keep + sent(elements % kBlock);
  }
  /// The first byte of the places.
  DSTRAIN_HD constexpr std::int64_t place_offset(std::int64_t elements) const {
    return entries(elements) * static_cast<std::int64_t>(sizeof(float));
  }
  /// Bytes of a message, without its padding and with it.
  DSTRAIN_HD constexpr std::int64_t used_bytes(std::int64_t elements) const {
    return entries(elements) * static_cast<std::int64_t>(sizeof(float) + sizeof(std::uint16_t));
  }
  DSTRAIN_HD constexpr std::int64_t bytes(std::int64_t elements) const {
    return (used_bytes(elements) + kMultiple - 1) / kMultiple * kMultiple;
  }
  friend constexpr bool operator==(const TopCode&, const TopCode&) = default;
};

/// Orders numbers by their magnitudes, NaN above infinity.
DSTRAIN_HD std::int32_t magnitude_order(float x) {
  return __builtin_bit_cast(std::int32_t, x) & 0x7fffffff;
}

/// Narrows down the least of the `keep` largest orders, bit by bit. `bound` is known to have at
/// least `keep` at or above it; of those at or above `raised(bound, bit)`, `count` were found.
/// Gives true if no more is to be found out.
struct TopBound {
  static constexpr int kHighestBit = 30;

  std::int32_t bound = 0;

  [[nodiscard]] DSTRAIN_HD std::int32_t raised(int bit) const {
    return bound | (std::int32_t{1} << bit);
  }
  DSTRAIN_HD bool narrow(int bit, std::int64_t count, std::int64_t keep) {
    bound = count >= keep ? raised(bit) : bound;
    return count == keep;
  }
};

}  // namespace dstrain
