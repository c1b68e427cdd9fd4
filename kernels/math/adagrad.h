// One element's Adagrad update (Duchi et al. 2011, diagonal), as torch.optim.Adagrad has it: the
// decay is added to the gradient.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct AdagradStep {
  float learning_rate = 0.0F;
  float epsilon = 1e-10F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
};

/// The sum of squares and the master parameter in place. F: float, or a vector of floats.
template <typename F>
DSTRAIN_HD void adagrad_element(const AdagradStep& step, F gradient, F& master, F& sum) {
  const F g = gradient * step.gradient_scale + step.weight_decay * master;
  sum = sum + g * g;
  master = master - step.learning_rate * (g / (FloatTraits<F>::square_root(sum) + step.epsilon));
}

}  // namespace dstrain
