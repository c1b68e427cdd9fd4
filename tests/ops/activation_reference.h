// The activation functions in fp64, written from their papers and not from kernels/math.
#pragma once

#include <cmath>
#include <numbers>

#include "tests/ops/lab.h"

namespace dstrain::test {

inline double activation_reference(ActivationKind kind, double x) {
  if (kind == ActivationKind::kGeluTanh) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + std::tanh(inner));
  }
  return x / (1.0 + std::exp(-x));
}

inline double activation_slope(ActivationKind kind, double x) {
  return finite_difference([kind](const Values& at) { return activation_reference(kind, at[0]); },
                           {x})[0];
}

constexpr ActivationKind kActivations[] = {ActivationKind::kGeluTanh, ActivationKind::kSilu};

}  // namespace dstrain::test
