// One element's Lion update (Chen et al. 2023, algorithm 2): a step of the rate's size in the
// direction of the sign, which is 0 where there is neither gradient nor momentum.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"

namespace dstrain {

/// The step with its products taken out of the loop over elements, each rounded once.
struct LionFactors {
  float gradient_scale;
  MeanWeights direction;
  MeanWeights momentum;
  float learning_rate;
  float decay;  ///< learning_rate · weight_decay
};

DSTRAIN_HD LionFactors factors_of(const LionStep& step) {
  return {static_cast<float>(step.gradient_scale), mean_weights(step.beta1),
          mean_weights(step.beta2), static_cast<float>(step.learning_rate),
          static_cast<float>(step.learning_rate * step.weight_decay)};
}

/// Updates m and the master parameter in place. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void update_element(
    const LionFactors& step, F gradient, F& master, F& m, F& /*second*/) {
  const F zero{};
  const F g = gradient * step.gradient_scale;
  const F c = running_mean(step.direction, m, g);
  const F up = zero + step.learning_rate;
  const F move = c > zero ? up : (c < zero ? -up : zero);
  m = running_mean(step.momentum, m, g);
  master = master - (step.decay * master + move);
}

}  // namespace dstrain
