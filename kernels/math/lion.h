// One element's Lion update (Chen et al. 2023, algorithm 2): a step of the rate's size in the
// direction of the sign, which is 0 where there is neither gradient nor momentum.
#pragma once

#include "kernels/math/host_device.h"

namespace dstrain {

struct LionStep {
  float learning_rate = 0.0F;
  float beta1 = 0.9F;
  float beta2 = 0.99F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
};

/// m and the master parameter in place. F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD void lion_element(const LionStep& step, F gradient, F& master, F& m) {
  const F zero{};
  const F g = gradient * step.gradient_scale;
  const F c = step.beta1 * m + (1.0F - step.beta1) * g;
  const F up = zero + step.learning_rate;
  const F move = c > zero ? up : (c < zero ? -up : zero);
  m = step.beta2 * m + (1.0F - step.beta2) * g;
  master = master - (step.learning_rate * step.weight_decay * master + move);
}

}  // namespace dstrain
