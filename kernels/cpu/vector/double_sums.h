// Sums in fp64 of vectors of floats.
#pragma once

#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {

constexpr int kDoubleLanes = kLanes / 2;
using VecDouble = double __attribute__((vector_size(4 * kLanes)));
using HalfVec = float __attribute__((vector_size(2 * kLanes)));

/// The first or second half of the lanes as doubles.
template <int kHalf>
DSTRAIN_INLINE VecDouble widened_half(Vec value) {
  HalfVec half;
  for (int lane = 0; lane < kDoubleLanes; ++lane) {
    half[lane] = value[kHalf * kDoubleLanes + lane];
  }
  return __builtin_convertvector(half, VecDouble);
}

DSTRAIN_INLINE double sum_lanes(VecDouble value) {
  double total = 0.0;
  for (int lane = 0; lane < kDoubleLanes; ++lane) {
    total += value[lane];
  }
  return total;
}

}  // namespace dstrain::DSTRAIN_ISA
