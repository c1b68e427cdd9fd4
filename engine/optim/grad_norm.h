// The factor that clips gradients to a global L2 norm, by DeepSpeed's rule:
// divisor = max(1, (norm + 1e-6) / limit). torch.nn.utils.clip_grad_norm_ gives the same factor.
#pragma once

#include <algorithm>

namespace dstrain {

/// The factor that gradients are multiplied by; `limit` 0 means no clipping.
inline double clip_factor(double norm, double limit) {
  return limit > 0.0 ? 1.0 / std::max(1.0, (norm + 1e-6) / limit) : 1.0;
}

}  // namespace dstrain
