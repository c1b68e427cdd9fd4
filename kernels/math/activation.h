// Activation functions: each is a value and its derivative, written once for every device.
// A new one is a struct here, an enumerator and its place in Activations: the loops and the tests
// of all devices and the keys of a config go over that list. F: float, or a vector of floats
// (vector_math.h).
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// Code that only passes a kind on declares it without its enumerators (ops.h).
enum class ActivationKind : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

/// Hendrycks & Gimpel 2016, the tanh form that GPT-2 uses ("gelu_new"):
/// 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))). Since 0.5 (1 + tanh u) = sigmoid(2u), it is
/// computed as x · sigmoid(2u).
struct GeluTanh {
  static constexpr ActivationKind kKind = ActivationKind::kGeluTanh;
  /// Hugging Face's words for it, in a config.json; the first is the one that is written.
  static constexpr const char* kWords[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"};
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

/// Hendrycks & Gimpel 2016: x Φ(x), Φ being the normal distribution's. With Q(z) = 1 - Φ(z) it is
/// max(x, 0) - |x| Q(|x|).
struct Gelu {
  static constexpr ActivationKind kKind = ActivationKind::kGelu;
  static constexpr const char* kWords[] = {"gelu"};
  static constexpr float kFar = 20.0F;  ///< where Q is 0, and infinity times it is to be 0 too

  template <typename F>
  DSTRAIN_HD static F value(F x) {
    const F z = distance(x);
    return FloatTraits<F>::larger(F{}, x) - z * normal_tail(z);
  }
  /// Φ(x) + x φ(x), where Φ(x) = 1/2 + sign(x) (1/2 - Q(|x|)).
  template <typename F>
  DSTRAIN_HD static F derivative(F x) {
    using Traits = FloatTraits<F>;
    const F z = distance(x);
    const F near = Traits::smaller(F{} + kFar, Traits::larger(F{} - kFar, x));
    const F sign = near * Traits::reciprocal(Traits::larger(F{} + 1e-30F, z));
    return 0.5F + sign * (0.5F - normal_tail(z)) + near * normal_density(z);
  }

 private:
  template <typename F>
  DSTRAIN_HD static F distance(F x) {
    return FloatTraits<F>::smaller(F{} + kFar, FloatTraits<F>::larger(-x, x));
  }
};

/// max(x, 0). At 0 its derivative is taken to be 0, as PyTorch does.
struct Relu {
  static constexpr ActivationKind kKind = ActivationKind::kRelu;
  static constexpr const char* kWords[] = {"relu"};
  template <typename F>
  DSTRAIN_HD static F value(F x) {
    return FloatTraits<F>::larger(F{}, x);
  }
  /// This factor brings all normal numbers above 0 above 1.
  template <typename F>
  DSTRAIN_HD static F derivative(F x) {
    return FloatTraits<F>::smaller(F{} + 1.0F, FloatTraits<F>::larger(F{}, x * 3.0e38F));
  }
};

/// Elfwing et al. 2017: x · sigmoid(x). With a gate it makes SwiGLU (Shazeer 2020).
struct Silu {
  static constexpr ActivationKind kKind = ActivationKind::kSilu;
  static constexpr const char* kWords[] = {"silu", "swish"};
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

/// The list of all activations.
template <typename... Formulas>
struct ActivationList {};
using Activations = ActivationList<Silu, GeluTanh, Gelu, Relu>;

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
