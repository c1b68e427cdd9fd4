// One element's RMSprop update (Tieleman & Hinton 2012, lecture 6e; centered: Graves 2013,
// equations 38 to 40), as torch.optim.RMSprop has it: the decay is added to the gradient, epsilon
// to the root.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The step without its cases, each factor rounded once.
struct RmspropFactors {
  float gradient_scale;
  float weight_decay;
  MeanWeights squares;
  MeanWeights first;  ///< of the buffer, or where centered of the mean gradient
  float epsilon;
  float learning_rate;
  bool centered;
};

DSTRAIN_HD RmspropFactors factors_of(const RmspropStep& step) {
  return {static_cast<float>(step.gradient_scale),
          static_cast<float>(step.weight_decay),
          mean_weights(step.alpha),
          step.centered ? mean_weights(step.alpha) : mean_weights(step.momentum, 1.0),
          static_cast<float>(step.epsilon),
          static_cast<float>(step.learning_rate),
          step.centered};
}

/// Updates the buffer or the mean gradient, the mean of squares and the master parameter in place.
/// F is float, or a vector of floats. Where all gradients are alike, rounding may leave less than
/// nothing of their variance, which torch makes NaN and this 0.
template <typename F>
DSTRAIN_HD void update_element(
    const RmspropFactors& step, F gradient, F& master, F& first, F& squares) {
  const F zero{};
  const F g = gradient * step.gradient_scale + step.weight_decay * master;
  squares = running_mean_of_squares(step.squares, squares, g);
  F move{};
  if (step.centered) {
    first = running_mean(step.first, first, g);
    const F variance = squares - first * first;
    const F deviation = FloatTraits<F>::square_root(variance > zero ? variance : zero);
    move = g / (deviation + step.epsilon);
  } else {
    first =
        running_mean(step.first, first, g / (FloatTraits<F>::square_root(squares) + step.epsilon));
    move = first;
  }
  master = master - step.learning_rate * move;
}

}  // namespace dstrain
