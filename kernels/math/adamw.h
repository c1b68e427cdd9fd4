// One element's AdamW update (Loshchilov & Hutter 2019, algorithm 2), in DeepSpeed's order:
// the decay uses the parameter before the update, epsilon is added after the bias correction.
// Adam (Kingma & Ba 2015) is the same with the decay in the gradient.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// What one optimizer step needs beside the tensors.
struct AdamwStep {
  float learning_rate = 0.0F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;      ///< AdamW's
  float gradient_decay = 0.0F;    ///< Adam's: gradient_decay · parameter is added to the gradient
  float bias_correction1 = 1.0F;  ///< 1 - beta1ᵗ, t counted from 1; 1 where correction is off
  float bias_correction2 = 1.0F;  ///< 1 - beta2ᵗ
  float gradient_scale = 1.0F;    ///< clipping and loss scaling, applied to the gradient first
};

/// The step with its divisions and roots taken out of the loop over elements.
struct AdamwFactors {
  float gradient_scale;
  float gradient_decay;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon;
  float inverse_root_correction2;  ///< 1 / sqrt(bias_correction2)
  float step_size;                 ///< learning_rate / bias_correction1
  float decay;                     ///< learning_rate · weight_decay
};

DSTRAIN_HD AdamwFactors adamw_factors(const AdamwStep& step) {
  return {step.gradient_scale,
          step.gradient_decay,
          step.beta1,
          step.beta2,
          1.0F - step.beta1,
          1.0F - step.beta2,
          step.epsilon,
          1.0F / __builtin_sqrtf(step.bias_correction2),
          step.learning_rate / step.bias_correction1,
          step.learning_rate * step.weight_decay};
}

/// m, v and the master parameter in place. F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD void adamw_element(const AdamwFactors& step, F gradient, F& master, F& m, F& v) {
  const F g = gradient * step.gradient_scale + step.gradient_decay * master;
  m = step.beta1 * m + step.one_minus_beta1 * g;
  v = step.beta2 * v + step.one_minus_beta2 * g * g;
  const F deviation = FloatTraits<F>::square_root(v) * step.inverse_root_correction2 + step.epsilon;
  master = master - (step.decay * master + step.step_size * (m / deviation));
}

}  // namespace dstrain
