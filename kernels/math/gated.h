// What a feed-forward makes of gate and up, and its gradient, once for every device. F: float, or a
// vector of floats (vector_math.h).
#pragma once

#include "kernels/math/activation.h"

namespace dstrain {

template <typename F>
struct GatedGradient {
  F gate;
  F up;
};

/// act(gate) · up (Shazeer 2020).
template <typename Activation>
struct PlainGate {
  template <typename F>
  DSTRAIN_HD F value(F gate, F up) const {
    return Activation::value(gate) * up;
  }
  template <typename F>
  DSTRAIN_HD GatedGradient<F> gradient(F gate, F up, F d) const {
    return {d * up * Activation::derivative(gate), d * Activation::value(gate)};
  }
};

/// (u + 1) · g · σ(1.702 g) of g = min(gate, limit) and u = up within ± limit (gpt-oss, 2025). As
/// PyTorch's clamp does, a number at the limit itself passes its gradient on, one beyond it none.
struct LimitedGate {
  static constexpr float kSteepness = 1.702F;

  float limit;

  template <typename F>
  DSTRAIN_HD F value(F gate, F up) const {
    const F g = limited_gate(gate);
    return (limited_up(up) + 1.0F) * (g * sigmoid(kSteepness * g));
  }
  template <typename F>
  DSTRAIN_HD GatedGradient<F> gradient(F gate, F up, F d) const {
    using Traits = FloatTraits<F>;
    const F g = limited_gate(gate);
    const F open = sigmoid(kSteepness * g);
    const F slope = open * (1.0F + kSteepness * g * (1.0F - open));
    const F d_up = d * (g * open);
    return {Traits::if_at_most(gate, F{} + limit, d * (limited_up(up) + 1.0F) * slope),
            Traits::if_at_most(F{} - limit, up, Traits::if_at_most(up, F{} + limit, d_up))};
  }

 private:
  template <typename F>
  DSTRAIN_HD F limited_gate(F gate) const {
    return FloatTraits<F>::smaller(F{} + limit, gate);
  }
  template <typename F>
  DSTRAIN_HD F limited_up(F up) const {
    return FloatTraits<F>::larger(F{} - limit, FloatTraits<F>::smaller(F{} + limit, up));
  }
};

/// Calls f with the formulas of a GatedActivation (kernels/op_kinds.h), on the host: kernels are
/// made for one of them.
template <typename F>
[[gnu::always_inline]] inline void visit_gated(ActivationKind kind, float limit, F&& f) {
  if (limit > 0.0F) {
    f(LimitedGate{limit});
  } else {
    visit(kind, [&](auto formula) { f(PlainGate<decltype(formula)>{}); });
  }
}

}  // namespace dstrain
