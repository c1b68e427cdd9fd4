// One element's AdamW update (Loshchilov & Hutter 2019, algorithm 2), in DeepSpeed's order:
// the decay uses the parameter before the update, epsilon is added after the bias correction.
// Adam (Kingma & Ba 2015) is the same with the decay in the gradient.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The step with its divisions and roots taken out of the loop over elements, each rounded once.
struct AdamwFactors {
  float gradient_scale;
  float gradient_decay;
  MeanWeights first;
  MeanWeights second;
  float epsilon;
  float inverse_root_correction2;  ///< 1 / sqrt(bias_correction2)
  float step_size;                 ///< learning_rate / bias_correction1
  float decay;                     ///< learning_rate · weight_decay
};

DSTRAIN_HD AdamwFactors factors_of(const AdamwStep& step) {
  return {static_cast<float>(step.gradient_scale),
          static_cast<float>(step.gradient_decay),
          mean_weights(step.beta1),
          mean_weights(step.beta2),
          static_cast<float>(step.epsilon),
          static_cast<float>(1.0 / __builtin_sqrt(step.bias_correction2)),
          static_cast<float>(step.learning_rate / step.bias_correction1),
          static_cast<float>(step.learning_rate * step.weight_decay)};
}

/// Updates m, v and the master parameter in place. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void update_element(const AdamwFactors& step, F gradient, F& master, F& m, F& v) {
  const F g = gradient * step.gradient_scale + step.gradient_decay * master;
  m = running_mean(step.first, m, g);
  v = running_mean_of_squares(step.second, v, g);
  const F deviation = FloatTraits<F>::square_root(v) * step.inverse_root_correction2 + step.epsilon;
  master = master - (step.decay * master + step.step_size * (m / deviation));
}

}  // namespace dstrain
