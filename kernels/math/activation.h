// Activation functions: each is a value and its derivative, written once for every device.
// A new one is a struct here, an enumerator, and a case in visit(); loops and tests follow.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

enum class ActivationKind : std::uint8_t { kGeluTanh, kSilu };

/// Hendrycks & Gimpel 2016, the tanh form that GPT-2 uses ("gelu_new"):
/// 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
struct GeluTanh {
  static constexpr float kSqrtTwoOverPi = 0.7978845608028654F;
  static constexpr float kCubic = 0.044715F;

  DSTRAIN_HD static float value(float x) {
    const float t = fast_tanh(kSqrtTwoOverPi * (x + kCubic * x * x * x));
    return 0.5F * x * (1.0F + t);
  }
  DSTRAIN_HD static float derivative(float x) {
    const float t = fast_tanh(kSqrtTwoOverPi * (x + kCubic * x * x * x));
    const float inner = kSqrtTwoOverPi * (1.0F + 3.0F * kCubic * x * x);
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * inner;
  }
};

/// Elfwing et al. 2017: x · sigmoid(x). With a gate it makes SwiGLU (Shazeer 2020).
struct Silu {
  DSTRAIN_HD static float value(float x) { return x / (1.0F + fast_exp(-x)); }
  DSTRAIN_HD static float derivative(float x) {
    const float sigmoid = 1.0F / (1.0F + fast_exp(-x));
    return sigmoid * (1.0F + x * (1.0F - sigmoid));
  }
};

/// Calls f with the struct that `kind` names.
template <typename F>
DSTRAIN_HD void visit(ActivationKind kind, F&& f) {
  switch (kind) {
    case ActivationKind::kGeluTanh:
      f(GeluTanh{});
      return;
    case ActivationKind::kSilu:
      f(Silu{});
      return;
  }
}

}  // namespace dstrain
