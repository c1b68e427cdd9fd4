// Muon's momentum (Jordan et al. 2024) for one element of the matrix to orthogonalise, and the
// polynomial that does it.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"

namespace dstrain {

/// The step, each factor rounded once.
struct MuonFactors {
  float gradient_scale;
  MeanWeights momentum;
  bool nesterov;
};

DSTRAIN_HD MuonFactors muon_factors(const MuonStep& step) {
  return {static_cast<float>(step.gradient_scale), mean_weights(step.momentum), step.nesterov};
}

/// Updates the buffer in place; returns the element of the update. F is float, or a vector of
/// floats.
template <typename F>
DSTRAIN_HD F muon_element(const MuonFactors& step, F gradient, F& buffer) {
  const F g = gradient * step.gradient_scale;
  buffer = running_mean(step.momentum, buffer, g);
  return step.nesterov ? running_mean(step.momentum, buffer, g) : buffer;
}

/// X ← a X + (b A + c A²) X with A = X·Xᵀ, five times: singular values of at most 1 go to within
/// about 0.3 of 1, and the smallest go fastest.
struct NewtonSchulz {
  static constexpr int kSteps = 5;
  static constexpr float kA = 3.4445F;
  static constexpr float kB = -4.7750F;
  static constexpr float kC = 2.0315F;
  static constexpr float kEpsilon = 1e-7F;  ///< added to the norm that X is divided by at first
};

}  // namespace dstrain
