// Weights with which two softmax-weighted sums over different keys become the one over all of them,
// from the logarithms of the sums of their exponentials (Dao et al. 2022, §3.1; Liu et al. 2023).
#pragma once

#include <cmath>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct MergeWeights {
  float mine;
  float others;
  float logsumexp;
};

/// An argument of -infinity means no key.
DSTRAIN_HD MergeWeights merge_weights(float mine, float others) {
  const float largest = mine > others ? mine : others;
  if (largest == -INFINITY) {
    return {0.0F, 0.0F, largest};
  }
  const float of_mine = mine == -INFINITY ? 0.0F : fast_exp(mine - largest);
  const float of_others = others == -INFINITY ? 0.0F : fast_exp(others - largest);
  const float total = of_mine + of_others;
  return {of_mine / total, of_others / total, largest + logf(total)};
}

}  // namespace dstrain
