// A running mean, mean ← beta · mean + (1 - beta) · fresh, whose weights are as exact as a float
// allows. beta as a float is off by up to 3e-8: of 1 - beta that is 3e-5 at 0.999, and again as
// much of a mean that has gathered 1 / (1 - beta) steps. So 1 - beta is taken in double, and what
// rounding removes from beta becomes a weight of its own.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

/// No initialisers: this is compiled for every instruction set.
struct MeanWeights {
  float keep;       ///< beta, rounded down
  float keep_rest;  ///< beta without `keep`: positive, so that an infinite mean stays one
  float take;       ///< 1 - beta
};

/// 0 ≤ beta ≤ 1. One of 1 leaves the mean as it is, to the bit: `keep` is the number before 1, and
/// what it takes away rounds back.
DSTRAIN_HD MeanWeights mean_weights(double beta, double take) {
  auto keep = static_cast<float>(beta);
  if (keep > 0.0F && static_cast<double>(keep) >= beta) {
    keep = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, keep) - 1);
  }
  return {keep, static_cast<float>(beta - static_cast<double>(keep)), static_cast<float>(take)};
}
DSTRAIN_HD MeanWeights mean_weights(double beta) {
  return mean_weights(beta, 1.0 - beta);
}

/// F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD F running_mean(const MeanWeights& weights, F mean, F fresh) {
  return weights.keep * mean + (weights.keep_rest * mean + weights.take * fresh);
}

/// The mean of squares; `fresh` is squared after its weight, which leaves more room for large ones.
template <typename F>
DSTRAIN_HD F running_mean_of_squares(const MeanWeights& weights, F mean, F fresh) {
  return weights.keep * mean + (weights.keep_rest * mean + weights.take * fresh * fresh);
}

}  // namespace dstrain
