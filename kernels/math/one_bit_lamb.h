// One element's 1-bit LAMB update once the variance v is frozen (Li et al. 2021, arXiv 2104.06069,
// algorithm 1), with the details of DeepSpeed 0.19 (runtime/fp16/onebit/lamb.py). The trust ratio
// is frozen too, as a running mean over the warm-up, which is LAMB (lamb.h) without bias
// correction. What it would have become since is followed by a factor: a fresh variance is kept of
// the gradients that the exchanged momenta imply, and the frozen one is compared with it.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct OneBitLambFactors {
  MeanWeights first;
  MeanWeights second;
  float epsilon;
  float weight_decay;
};

DSTRAIN_HD OneBitLambFactors one_bit_lamb_factors(const OneBitLambStep& step) {
  return {mean_weights(step.beta1), mean_weights(step.beta2), static_cast<float>(step.epsilon),
          static_cast<float>(step.weight_decay)};
}

/// d, the momentum that all ranks received, becomes m; fresh, the variance that is not frozen,
/// takes in the gradient that leads from m to d. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void one_bit_lamb_moments_element(const OneBitLambFactors& step, F d, F& m, F& fresh) {
  const F gradient = ((d - step.first.keep * m) - step.first.keep_rest * m) / step.first.take;
  fresh = running_mean_of_squares(step.second, fresh, gradient);
  m = d;
}

template <typename F>
struct OneBitLambDirection {
  F update;      ///< what the parameter moves along, before the trust ratio
  F first_term;  ///< without the decay
};
template <typename F>
DSTRAIN_HD OneBitLambDirection<F> one_bit_lamb_direction(const OneBitLambFactors& step,
                                                         F master,
                                                         F m,
                                                         F v) {
  const F first_term = m / (FloatTraits<F>::square_root(v) + step.epsilon);
  return {first_term + step.weight_decay * master, first_term};
}

/// The frozen deviation over the fresh one.
template <typename F>
DSTRAIN_HD F deviations_ratio(const OneBitLambFactors& step, F v, F fresh) {
  return (FloatTraits<F>::square_root(v) + step.epsilon) /
         (FloatTraits<F>::square_root(fresh) + step.epsilon);
}

/// The larger one, or NaN if either is.
template <typename F>
DSTRAIN_HD F larger_or_nan(F a, F b) {
  return ((a > b) | (a != a)) ? a : b;
}

/// What the frozen coefficient of a whole tensor is multiplied by: its largest ratio of deviations,
/// as far as the step is not decay, within [factor_min, factor_max] and within a share of
/// factor_threshold of the last one.
DSTRAIN_HD double one_bit_lamb_factor(const OneBitLambStep& step,
                                      double update_squares,
                                      double first_term_squares,
                                      double largest_ratio,
                                      double last) {
  double factor = largest_ratio;
  if (step.weight_decay > 0.0 && first_term_squares < update_squares) {
    const double share = __builtin_sqrt(first_term_squares) / __builtin_sqrt(update_squares);
    factor = factor * share + (1.0 - share);
  }
  factor = factor > step.factor_max ? step.factor_max : factor;
  factor = factor < step.factor_min ? step.factor_min : factor;
  const double most = last * (1.0 + step.factor_threshold);
  const double least = last * (1.0 - step.factor_threshold);
  factor = factor > most ? most : factor;
  return factor < least ? least : factor;
}

/// The frozen coefficient after one more update of the warm-up. A ratio of 1 says that there was
/// none (lamb_trust_ratio), and does not count.
DSTRAIN_HD double remembered_trust_ratio(double beta, double coefficient, float ratio) {
  return ratio == 1.0F ? coefficient
                       : beta * coefficient + (1.0 - beta) * static_cast<double>(ratio);
}

}  // namespace dstrain
