// One element's Adagrad update (Duchi et al. 2011, diagonal), as torch.optim.Adagrad has it: the
// decay is added to the gradient.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The loop needs nothing but the step.
DSTRAIN_HD AdagradStep factors_of(const AdagradStep& step) {
  return step;
}

/// Updates the sum of squares and the master parameter in place. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD void update_element(
    const AdagradStep& step, F gradient, F& master, F& /*first*/, F& sum) {
  const F g = gradient * step.gradient_scale + step.weight_decay * master;
  sum = sum + g * g;
  master = master - step.learning_rate * (g / (FloatTraits<F>::square_root(sum) + step.epsilon));
}

}  // namespace dstrain
