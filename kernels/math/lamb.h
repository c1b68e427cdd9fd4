// One element's LAMB update (You et al. 2020, algorithm 2), with the details of DeepSpeed's fused
// LAMB: the bias correction scales the step and not the direction, whose norm is thus that of the
// uncorrected moments; the ratio of the norms is clamped.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The step with its cases and roots taken out of the loop over elements, each rounded once.
struct LambFactors {
  float gradient_scale;
  MeanWeights first;
  MeanWeights second;
  float epsilon_inside;
  float epsilon_outside;
  float weight_decay;
  float step_size;  ///< learning_rate · sqrt(bias_correction2) / bias_correction1
};

DSTRAIN_HD LambFactors lamb_factors(const LambStep& step) {
  const auto epsilon = static_cast<float>(step.epsilon);
  return {static_cast<float>(step.gradient_scale),
          mean_weights(step.beta1),
          mean_weights(step.beta2),
          step.eps_inside_sqrt ? epsilon : 0.0F,
          step.eps_inside_sqrt ? 0.0F : epsilon,
          static_cast<float>(step.weight_decay),
          static_cast<float>(step.learning_rate * __builtin_sqrt(step.bias_correction2) /
                             step.bias_correction1)};
}

/// Updates m and v in place. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void lamb_moments_element(const LambFactors& step, F gradient, F& m, F& v) {
  const F g = gradient * step.gradient_scale;
  m = running_mean(step.first, m, g);
  v = running_mean_of_squares(step.second, v, g);
}

/// The direction that the parameter moves along, before the trust ratio.
template <typename F>
DSTRAIN_HD F lamb_direction(const LambFactors& step, F master, F m, F v) {
  const F deviation = FloatTraits<F>::square_root(v + step.epsilon_inside) + step.epsilon_outside;
  return m / deviation + step.weight_decay * master;
}

/// ‖parameter‖ / ‖direction‖ of a whole tensor, clamped; 1 if either norm is 0.
DSTRAIN_HD float lamb_trust_ratio(const LambStep& step,
                                  double parameter_squares,
                                  double direction_squares) {
  if (parameter_squares == 0.0 || direction_squares == 0.0) {
    return 1.0F;
  }
  const double ratio = __builtin_sqrt(parameter_squares) / __builtin_sqrt(direction_squares);
  return static_cast<float>(
      ratio > step.max_coeff ? step.max_coeff : (ratio < step.min_coeff ? step.min_coeff : ratio));
}

}  // namespace dstrain
