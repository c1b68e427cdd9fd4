// The largest numbers of a block (kernels/math/top_code.h). The block stays in the first-level
// cache, so that counting it for every bit of the bound costs less than a sort.
#include "kernels/math/top_code.h"

#include "kernels/cpu/vector/lane_bits.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

DSTRAIN_INLINE LaneIndex orders(Vec x) {
  return reinterpret_cast<LaneIndex>(x) & 0x7fffffff;
}

/// Elements whose order is `bound` or above; bound > 0.
DSTRAIN_INLINE std::int64_t count_from(const float* x, std::int64_t n, std::int32_t bound) {
  LaneIndex counts[2] = {};
  for_each_vec_pair(n, [=, &counts](std::int64_t i, auto width, int chain) {
    counts[chain] -= orders(load(x + i, width)) >= bound;  // -1 where it is
  });
  std::int64_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    total += counts[0][lane] + counts[1][lane];
  }
  return total;
}

DSTRAIN_INLINE unsigned covered_lanes(Whole /*width*/) {
  return ~0U;
}
DSTRAIN_INLINE unsigned covered_lanes(Partial width) {
  return (1U << width.count) - 1U;
}

[[gnu::flatten]] void take_largest(
    float* x, std::int64_t n, std::int64_t keep, float* values, std::uint16_t* places) {
  TopBound least;
  for (int bit = TopBound::kHighestBit; bit >= 0 && keep < n; --bit) {
    if (least.narrow(bit, count_from(x, n, least.raised(bit)), keep)) {
      break;
    }
  }
  std::int32_t bound = least.bound;
  std::int64_t equal = keep - count_from(x, n, bound + 1);  // as large as the bound, to be taken
  for_each_vec(n, [&](std::int64_t i, auto width) {
    unsigned lanes = lane_bits(orders(load(x + i, width)) >= bound) & covered_lanes(width);
    for (; lanes != 0; lanes &= lanes - 1) {
      const std::int64_t place = i + __builtin_ctz(lanes);
      if (magnitude_order(x[place]) <= least.bound) {
        if (equal == 0) {
          continue;
        }
        --equal;
        bound += equal == 0 ? 1 : 0;
      }
      *values++ = x[place];
      *places++ = static_cast<std::uint16_t>(place);
      x[place] = 0.0F;
    }
  });
}

}  // namespace

void fill_top_code(VectorLoops* loops) {
  loops->take_largest = take_largest;
}

}  // namespace dstrain::DSTRAIN_ISA
