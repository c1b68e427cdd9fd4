// What a comparison of vectors says, as bits of an integer: lane 0 in the lowest.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {

/// `lanes`: all bits or none of each lane.
DSTRAIN_INLINE unsigned lane_bits(LaneIndex lanes) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(lanes));
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(lanes)));
#else
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(lanes)));
#endif
}

}  // namespace dstrain::DSTRAIN_ISA
