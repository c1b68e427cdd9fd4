// Dropout in vectors: the factors of sixteen elements along, of neighbours across in the lanes.
#pragma once

#include "kernels/cpu/vector/words.h"
#include "kernels/math/dropout.h"

namespace dstrain::DSTRAIN_ISA {

struct DropoutFactors {
  Vec along[kDropoutAlong];

  /// Along from 16 · `block` on, across from `across` on.
  DSTRAIN_INLINE void fill(const SampleDropout& dropout,
                           std::uint32_t plane,
                           std::uint32_t block,
                           std::uint32_t across) {
    VecBits lanes{};
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = across + static_cast<std::uint32_t>(lane);
    }
    for (int counter = 0; counter < kDropoutCounters; ++counter) {
      VecBits words[4];
      dropout_words(dropout, plane,
                    VecBits{} + (block * kDropoutCounters + static_cast<std::uint32_t>(counter)),
                    lanes, words);
      for (int word = 0; word < 4; ++word) {
        along[dropout_along(counter, word)] =
            words[word] < dropout.threshold ? Vec{} : broadcast(dropout.factor);
      }
    }
  }
};

}  // namespace dstrain::DSTRAIN_ISA
