// One element's step of stochastic gradient descent with momentum, as torch.optim.SGD has it
// (Sutskever et al. 2013 with the rate outside the buffer): the decay is added to the gradient, the
// first step fills the buffer with the gradient, undamped.
#pragma once

#include "kernels/math/host_device.h"

namespace dstrain {

struct SgdStep {
  float learning_rate = 0.0F;
  float momentum = 0.0F;  ///< 0: there is no buffer
  float dampening = 0.0F;
  bool nesterov = false;
  bool first = false;  ///< the buffer holds nothing yet
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
};

/// The step without its cases.
struct SgdFactors {
  float gradient_scale;
  float weight_decay;
  float keep;      ///< of the old buffer
  float take;      ///< of the gradient into the buffer
  float direct;    ///< of the gradient into the step
  float buffered;  ///< of the new buffer into the step
  float learning_rate;
};

DSTRAIN_HD SgdFactors sgd_factors(const SgdStep& step) {
  const bool has_buffer = step.momentum != 0.0F;
  return {step.gradient_scale,
          step.weight_decay,
          step.first ? 0.0F : step.momentum,
          step.first ? 1.0F : 1.0F - step.dampening,
          !has_buffer || step.nesterov ? 1.0F : 0.0F,
          !has_buffer     ? 0.0F
          : step.nesterov ? step.momentum
                          : 1.0F,
          step.learning_rate};
}

/// The buffer and the master parameter in place. F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD void sgd_element(const SgdFactors& step, F gradient, F& master, F& buffer) {
  const F g = gradient * step.gradient_scale + step.weight_decay * master;
  buffer = step.keep * buffer + step.take * g;
  master = master - step.learning_rate * (step.direct * g + step.buffered * buffer);
}

}  // namespace dstrain
