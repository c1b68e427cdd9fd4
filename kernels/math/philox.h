// Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): random
// numbers as a pure function of a key and a counter. Nothing to seed, nothing to advance, the
// same values whatever the number of ranks or threads that ask.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/philox_rounds.h"

namespace dstrain {

/// Four random words for (key, counter).
DSTRAIN_HD std::array<std::uint32_t, 4> philox(std::uint64_t key,
                                               std::uint64_t counter_low,
                                               std::uint64_t counter_high) {
  std::uint32_t words[4] = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  philox_rounds(key, words);
  return {words[0], words[1], words[2], words[3]};
}

/// Uniform in (0, 1): 24 bits, never 0 or 1.
DSTRAIN_HD float uniform_from(std::uint32_t word) {
  return (static_cast<float>(word >> 8) + 0.5F) * (1.0F / 16777216.0F);
}

/// Element `index` of a stream of numbers that are uniform in (0, 1).
DSTRAIN_HD float uniform_at(std::uint64_t key, std::uint64_t stream, std::uint64_t index) {
  return uniform_from(philox(key, index, stream)[0]);
}

/// Element `index` of a stream of standard normal numbers (Box & Muller 1958; two to a block).
DSTRAIN_HD float normal_at(std::uint64_t key, std::uint64_t stream, std::uint64_t index) {
  const std::array<std::uint32_t, 4> words = philox(key, index >> 1, stream);
  const float radius = std::sqrt(-2.0F * std::log(uniform_from(words[0])));
  const float angle = 6.283185307179586F * uniform_from(words[1]);
  return (index & 1U) == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace dstrain
