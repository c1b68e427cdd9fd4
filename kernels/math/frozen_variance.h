// One element's steps of 1-bit Adam (Tang et al. 2021, arXiv 2102.02888, algorithm 1) and 0/1 Adam
// (Lu et al. 2022, arXiv 2202.06009, algorithm 1) once the variance v is frozen. Before that both
// are AdamW (adamw.h) with bias corrections of 1. Where ranks exchange something, `d` is what
// arrived, decoded: the same on all of them.
//
// 0/1 Adam's ranks step on their own between synchronisations. Here the master is what they last
// agreed on, and w is the sum of what each of them has since added, rates times momenta:
//   parameter = master - w / (√v + ε)
// DeepSpeed 0.19 (runtime/fp16/onebit/zoadam.py) keeps -w / (√v + ε) and multiplies it by √v + ε
// before it is sent, which is the same with v frozen. But it adds the decay of the weights to what
// it keeps, and derives the momentum from the mean of that: the decay ends up in the momentum, and
// acts about 1 / (1 - β₁) times too strongly from then on. Here it acts on the master alone.
#pragma once

#include "kernels/math/host_device.h"
#include "kernels/math/optimizer_steps.h"
#include "kernels/math/running_mean.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct OneBitAdamFactors {
  float learning_rate;
  float epsilon;
  float decay;  ///< learning_rate · weight_decay
};
struct LocalFactors {
  float gradient_scale;
  MeanWeights first;
  float learning_rate;
  float epsilon;
  float decay;  ///< learning_rate · weight_decay
};
struct SyncFactors {
  float epsilon;
  float rates;
};

DSTRAIN_HD OneBitAdamFactors factors_of(const OneBitAdamStep& step) {
  return {static_cast<float>(step.learning_rate), static_cast<float>(step.epsilon),
          static_cast<float>(step.learning_rate * step.weight_decay)};
}
DSTRAIN_HD LocalFactors factors_of(const LocalStep& step) {
  return {static_cast<float>(step.gradient_scale), mean_weights(step.beta1),
          static_cast<float>(step.learning_rate), static_cast<float>(step.epsilon),
          static_cast<float>(step.learning_rate * step.weight_decay)};
}
DSTRAIN_HD SyncFactors factors_of(const SyncStep& step) {
  return {static_cast<float>(step.epsilon), static_cast<float>(step.rates)};
}

/// True of the steps of this file. Their update_element() reads v, updates the master, m and, where
/// there is one, the third moment in place, and returns the parameter.
template <typename Factors>
constexpr bool kFreezesVariance = false;
template <>
inline constexpr bool kFreezesVariance<OneBitAdamFactors> = true;
template <>
inline constexpr bool kFreezesVariance<LocalFactors> = true;
template <>
inline constexpr bool kFreezesVariance<SyncFactors> = true;

/// 1-bit Adam: d is the momentum. F is float, or a vector of floats.
template <typename F>
DSTRAIN_HD F
update_element(const OneBitAdamFactors& step, F d, F& master, F& m, F v, F& /*third*/) {
  m = d;
  const F deviation = FloatTraits<F>::square_root(v) + step.epsilon;
  master = master - (step.decay * master + step.learning_rate * (m / deviation));
  return master;
}

/// 0/1 Adam between synchronisations.
template <typename F>
DSTRAIN_HD F update_element(const LocalFactors& step, F gradient, F& master, F& m, F v, F& w) {
  m = running_mean(step.first, m, gradient * step.gradient_scale);
  w = w + step.learning_rate * m;
  master = master - step.decay * master;
  return master - w / (FloatTraits<F>::square_root(v) + step.epsilon);
}

/// 0/1 Adam's synchronisation: d is the mean of w over the ranks.
template <typename F>
DSTRAIN_HD F update_element(const SyncFactors& step, F d, F& master, F& m, F v, F& w) {
  m = d / step.rates;
  w = F{};
  master = master - d / (FloatTraits<F>::square_root(v) + step.epsilon);
  return master;
}

}  // namespace dstrain
