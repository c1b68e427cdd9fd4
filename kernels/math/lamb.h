// One element's LAMB update (You et al. 2020, algorithm 2), with the details of DeepSpeed's fused
// LAMB: the bias correction scales the step and not the direction, whose norm is thus that of the
// uncorrected moments; the ratio of the norms is clamped.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct LambStep {
  float learning_rate = 0.0F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  bool eps_inside_sqrt = false;
  float weight_decay = 0.0F;
  float bias_correction1 = 1.0F;  ///< 1 - beta1ᵗ, t counted from 1; 1 where correction is off
  float bias_correction2 = 1.0F;  ///< 1 - beta2ᵗ
  float max_coeff = 10.0F;        ///< of the trust ratio
  float min_coeff = 0.01F;
  float gradient_scale = 1.0F;
};

/// The step with its cases and roots taken out of the loop over elements.
struct LambFactors {
  float gradient_scale;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon_inside;
  float epsilon_outside;
  float weight_decay;
  float step_size;  ///< learning_rate · sqrt(bias_correction2) / bias_correction1
};

DSTRAIN_HD LambFactors lamb_factors(const LambStep& step) {
  return {step.gradient_scale,
          step.beta1,
          step.beta2,
          1.0F - step.beta1,
          1.0F - step.beta2,
          step.eps_inside_sqrt ? step.epsilon : 0.0F,
          step.eps_inside_sqrt ? 0.0F : step.epsilon,
          step.weight_decay,
          step.learning_rate * __builtin_sqrtf(step.bias_correction2) / step.bias_correction1};
}

/// m and v in place. F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD void lamb_moments_element(const LambFactors& step, F gradient, F& m, F& v) {
  const F g = gradient * step.gradient_scale;
  m = step.beta1 * m + step.one_minus_beta1 * g;
  v = step.beta2 * v + step.one_minus_beta2 * g * g;
}

/// What the parameter moves along, before the trust ratio.
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
  const auto ratio =
      static_cast<float>(__builtin_sqrt(parameter_squares) / __builtin_sqrt(direction_squares));
  return ratio > step.max_coeff ? step.max_coeff
                                : (ratio < step.min_coeff ? step.min_coeff : ratio);
}

}  // namespace dstrain
