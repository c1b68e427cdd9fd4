// Philox in vectors: what its rounds need of one (kernels/math/philox_rounds.h).
#pragma once

#include "kernels/cpu/vector/vec.h"
#include "kernels/math/philox_rounds.h"

namespace dstrain {

template <>
struct WordTraits<DSTRAIN_ISA::VecBits> {
  using Words = DSTRAIN_ISA::VecBits;
  using Wide = std::uint64_t __attribute__((vector_size(4 * DSTRAIN_ISA::kLanes)));

  /// Processors multiply every second word into 64 bits: even lanes, then odd ones.
  DSTRAIN_HD static void wide_product(std::uint32_t multiplier, Words a, Words& high, Words& low) {
    const Wide pairs = reinterpret_cast<Wide>(a);
    const Wide even = product_of_low_words(pairs, multiplier);
    const Wide odd = product_of_low_words(pairs >> 32, multiplier);
    high = reinterpret_cast<Words>((even >> 32) | (odd & 0xffffffff00000000U));
    low = reinterpret_cast<Words>((even & 0xffffffffU) | (odd << 32));
  }

 private:
  DSTRAIN_HD static Wide product_of_low_words(Wide a, std::uint32_t multiplier) {
    const Wide b = Wide{} + multiplier;
#if defined(__AVX512F__)
    return reinterpret_cast<Wide>(
        _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Wide>(
        _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
    return (a & 0xffffffffU) * b;
#endif
  }
};

}  // namespace dstrain
