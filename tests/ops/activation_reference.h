// The activation functions in fp64: all that kernels/math/activation.h lists, so that a new one is
// tested as soon as it exists. Those that are known here are written from their papers; for any
// other, the loops, the precision and the derivative are tested against its own formula.
#pragma once

#include <array>
#include <cmath>
#include <numbers>

#include "kernels/math/activation.h"
#include "tests/ops/lab.h"

namespace dstrain::test {

inline double activation_reference(ActivationKind kind, double x) {
  if (kind == ActivationKind::kGeluTanh) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + std::tanh(inner));
  }
  if (kind == ActivationKind::kGelu) {
    return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
  }
  if (kind == ActivationKind::kRelu) {
    return x > 0.0 ? x : 0.0;
  }
  if (kind == ActivationKind::kSilu) {
    return x / (1.0 + std::exp(-x));
  }
  double value = NAN;
  visit(kind, [&](auto formula) { value = formula.value(x); });
  return value;
}

inline double activation_slope(ActivationKind kind, double x) {
  if (kind == ActivationKind::kRelu) {
    return x > 0.0 ? 1.0 : 0.0;  // a difference across its corner is neither
  }
  return finite_difference([kind](const Values& at) { return activation_reference(kind, at[0]); },
                           {x})[0];
}

template <typename... Formulas>
constexpr auto kinds_of(ActivationList<Formulas...> /*all*/) {
  return std::to_array({Formulas::kKind...});
}
constexpr auto kActivations = kinds_of(Activations{});

}  // namespace dstrain::test
