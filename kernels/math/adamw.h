// One element's AdamW update (Loshchilov & Hutter 2019, algorithm 2), in DeepSpeed's order.
#pragma once

#include <cmath>

#include "kernels/math/host_device.h"

namespace dstrain {

/// What one optimizer step needs beside the tensors.
struct AdamwStep {
  float learning_rate = 0.0F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;
  float bias_correction1 = 1.0F;  ///< 1 - beta1ᵗ, t counted from 1; 1 where correction is off
  float bias_correction2 = 1.0F;  ///< 1 - beta2ᵗ
  float gradient_scale = 1.0F;    ///< clipping (and later loss scaling), applied to the gradient
};

/// m, v and the master parameter in place. The decay uses the parameter before the update.
DSTRAIN_HD void adamw_element(const AdamwStep& step, float gradient, float& master, float& m,
                              float& v) {
  const float g = gradient * step.gradient_scale;
  m = step.beta1 * m + (1.0F - step.beta1) * g;
  v = step.beta2 * v + (1.0F - step.beta2) * g * g;
  const float m_hat = m / step.bias_correction1;
  const float v_hat = v / step.bias_correction2;
  master -= step.learning_rate *
            (m_hat / (std::sqrt(v_hat) + step.epsilon) + step.weight_decay * master);
}

}  // namespace dstrain
