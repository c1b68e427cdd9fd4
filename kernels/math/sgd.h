// One element's step of stochastic gradient descent with momentum, as torch.optim.SGD has it
// (Sutskever et al. 2013 with the rate outside the buffer): the decay is added to the gradient, the
// first step fills the buffer with the gradient, undamped.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"

namespace dstrain {

/// The step without its cases, each factor rounded once.
struct SgdFactors {
  float gradient_scale;
  float weight_decay;
  MeanWeights buffer;  ///< of the old buffer and the gradient in the new one
  float direct;        ///< of the gradient into the step
  float buffered;      ///< of the new buffer into the step
  float learning_rate;
};

DSTRAIN_HD SgdFactors factors_of(const SgdStep& step) {
  const bool has_buffer = step.momentum != 0.0;
  return {static_cast<float>(step.gradient_scale),
          static_cast<float>(step.weight_decay),
          step.first ? mean_weights(0.0) : mean_weights(step.momentum, 1.0 - step.dampening),
          !has_buffer || step.nesterov ? 1.0F : 0.0F,
          !has_buffer     ? 0.0F
          : step.nesterov ? static_cast<float>(step.momentum)
                          : 1.0F,
          static_cast<float>(step.learning_rate)};
}

/// Updates the buffer and the master parameter in place. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void update_element(
    const SgdFactors& step, F gradient, F& master, F& buffer, F& /*second*/) {
  const F g = gradient * step.gradient_scale + step.weight_decay * master;
  buffer = running_mean(step.buffer, buffer, g);
  master = master - step.learning_rate * (step.direct * g + step.buffered * buffer);
}

}  // namespace dstrain
