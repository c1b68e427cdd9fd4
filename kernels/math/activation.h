// Activation functions: each is a value and its derivative, written once for every device.
// A new one is a struct here, an enumerator and its place in Activations: the loops and the tests
// of all devices go over that list. F: float, or a vector of floats (vector_math.h).
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// Where a kind is only passed on, it is declared without its enumerators (ops.h).
enum class ActivationKind : std::uint8_t { kSilu, kGeluTanh };

/// Hendrycks & Gimpel 2016, the tanh form that GPT-2 uses ("gelu_new"):
/// 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))). Since 0.5 (1 + tanh u) = sigmoid(2u), it is
/// computed as x · sigmoid(2u).
struct GeluTanh {
  static constexpr ActivationKind kKind = ActivationKind::kGeluTanh;
  static constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308F;
  static constexpr float kCubic = 0.044715F;

  template <typename F>
  DSTRAIN_HD static F value(F x) {
    const F twice_u = kTwoSqrtTwoOverPi * (x + kCubic * x * x * x);
    return x * sigmoid(twice_u);
  }
  template <typename F>
  DSTRAIN_HD static F derivative(F x) {
    const F twice_u = kTwoSqrtTwoOverPi * (x + kCubic * x * x * x);
    const F gate = sigmoid(twice_u);
    const F slope = kTwoSqrtTwoOverPi * (1.0F + 3.0F * kCubic * x * x);
    return gate + x * gate * (1.0F - gate) * slope;
  }
};

/// Elfwing et al. 2017: x · sigmoid(x). With a gate it makes SwiGLU (Shazeer 2020).
struct Silu {
  static constexpr ActivationKind kKind = ActivationKind::kSilu;
  template <typename F>
  DSTRAIN_HD static F value(F x) {
    return x * sigmoid(x);
  }
  template <typename F>
  DSTRAIN_HD static F derivative(F x) {
    const F gate = sigmoid(x);
    return gate * (1.0F + x * (1.0F - gate));
  }
};

/// All of them.
template <typename... Formulas>
struct ActivationList {};
using Activations = ActivationList<Silu, GeluTanh>;

template <typename F, typename... Formulas>
[[gnu::always_inline]] inline void visit(ActivationKind kind,
                                         F&& f,
                                         ActivationList<Formulas...> /*all*/) {
  (void)((kind == Formulas::kKind ? (f(Formulas{}), true) : false) || ...);
}
/// Calls f with the struct that `kind` names, on the host: kernels are made for one of them.
template <typename F>
[[gnu::always_inline]] inline void visit(ActivationKind kind, F&& f) {
  visit(kind, f, Activations{});
}

}  // namespace dstrain
