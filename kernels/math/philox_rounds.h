// The rounds of Philox-4x32-10 (Salmon et al. 2011), written once for one counter and for a vector
// of them. WordTraits has what a word needs beside + and ^; a vector type specialises it.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

template <typename W>
struct WordTraits;

template <>
struct WordTraits<std::uint32_t> {
  /// multiplier · a in 64 bits.
  DSTRAIN_HD static void wide_product(std::uint32_t multiplier,
                                      std::uint32_t a,
                                      std::uint32_t& high,
                                      std::uint32_t& low) {
    const std::uint64_t product = std::uint64_t{multiplier} * a;
    high = static_cast<std::uint32_t>(product >> 32);
    low = static_cast<std::uint32_t>(product);
  }
};

/// Turns the counter into four random words. W is std::uint32_t, or a vector of them.
template <typename W>
DSTRAIN_HD void philox_rounds(std::uint64_t key, W (&counter)[4]) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    W high0;
    W low0;
    W high1;
    W low1;
    WordTraits<W>::wide_product(kMultiplier0, counter[0], high0, low0);
    WordTraits<W>::wide_product(kMultiplier1, counter[2], high1, low1);
    counter[0] = high1 ^ counter[1] ^ key0;
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ key1;
    counter[3] = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

}  // namespace dstrain
