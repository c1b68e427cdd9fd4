#include "engine/data/permutation.h"

#include <bit>

#include "kernels/core/check.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

// Eight rounds on halves that may be a bit or two wide; for wide ones four would do.
constexpr std::uint64_t kRounds = 8;

std::uint64_t round_function(std::uint64_t half,
                             std::uint64_t round,
                             std::uint64_t key,
                             std::uint64_t stream) {
  const auto words = philox(key, half | (round << 56), stream);
  return words[0] | (static_cast<std::uint64_t>(words[1]) << 32);
}

}  // namespace

std::int64_t permuted(std::int64_t index, std::int64_t n, std::uint64_t key, std::uint64_t stream) {
  check(index >= 0 && index < n, "element {} of a permutation of {}", index, n);
  if (n == 1) {
    return 0;
  }
  // The domain is [0, 2^bits) with 2^bits < 2n, so fewer than two walks are expected. A half may be
  // empty (bits = 1: then the other one is XORed with a random bit, and that is all).
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  const int low_bits = (bits + 1) / 2;
  const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
  const std::uint64_t high_mask = (std::uint64_t{1} << (bits - low_bits)) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t low = value & low_mask;
    std::uint64_t high = value >> low_bits;
    for (std::uint64_t round = 0; round < kRounds; round += 2) {
      low ^= round_function(high, round, key, stream) & low_mask;
      high ^= round_function(low, round + 1, key, stream) & high_mask;
    }
    value = (high << low_bits) | low;
  } while (value >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(value);
}

}  // namespace dstrain
