// Activations against fp64 formulas, gradients against finite differences of them.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/ops/activation_reference.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kTokens = 5;

/// Both tails, where exp would overflow, as well as the middle.
Values inputs(DType dtype, std::int64_t n) {
  Values x = random_values(n, 1, 6.0);
  const Values special{0.0, -100.0, 100.0, -9.0, 9.0, 1e-4, -1e-4};
  std::copy_n(special.begin(), std::min(special.size(), x.size()), x.begin());
  return rounded_to(dtype, x);
}

std::vector<std::pair<ActivationKind, std::int64_t>> every_kind_and_width() {
  std::vector<std::pair<ActivationKind, std::int64_t>> both;
  for (const ActivationKind kind : kActivations) {
    for (const std::int64_t width : {7, 100, 1024}) {
      both.emplace_back(kind, width);
    }
  }
  return both;
}

}  // namespace

TEST_CASE("activations and their gradients follow the fp64 formulas", "[ops][activation]") {
  for (const DType dtype : kComputeDtypes) {
    for (const ActivationKind kind : kActivations) {
      for (const std::int64_t width : {7, 100, 4096}) {
        CAPTURE(name_of(dtype), static_cast<int>(kind), width);
        const Shape shape{kTokens, width};
        const Values x = inputs(dtype, shape.numel());
        const Values dy = rounded_to(dtype, random_values(shape.numel(), 2));
        Values y(x.size());
        Values dx(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[i] = activation_reference(kind, x[i]);
          dx[i] = dy[i] * activation_slope(kind, x[i]);
        }
        // The f32 exponential is right to about 2e-7; x is up to 100.
        const double relative = relative_error_of(dtype);
        conforms({{"y", y, relative, 2e-6}, {"dx", dx, relative, 3e-6}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor x_in = lab.put(x, dtype, shape);
                   const Tensor y_out = lab.unset(dtype, shape);
                   const Tensor dx_out = lab.put(dy, dtype, shape);  // in place
                   lab.ops().activation_forward(kind, x_in, y_out, lab.stream());
                   lab.ops().activation_backward(kind, x_in, dx_out, dx_out, lab.stream());
                   return {lab.get(y_out), lab.get(dx_out)};
                 });
      }
    }
  }
}

TEST_CASE("gated activations and their gradients follow the fp64 formulas", "[ops][activation]") {
  for (const DType dtype : kComputeDtypes) {
    for (const auto& [kind, width] : every_kind_and_width()) {
      CAPTURE(name_of(dtype), static_cast<int>(kind), width);
      const auto width_F = static_cast<std::size_t>(width);
      const Values gate_up = inputs(dtype, kTokens * 2 * width);
      const Values dy = rounded_to(dtype, random_values(kTokens * width, 2));
      Values y(dy.size());
      Values d_gate_up(gate_up.size());
      for (std::size_t row = 0; row < kTokens; ++row) {
        for (std::size_t f = 0; f < width_F; ++f) {
          const std::size_t at_gate = row * 2 * width_F + f;
          const std::size_t at_up = at_gate + width_F;
          const double d = dy[row * width_F + f];
          y[row * width_F + f] = activation_reference(kind, gate_up[at_gate]) * gate_up[at_up];
          d_gate_up[at_gate] = d * gate_up[at_up] * activation_slope(kind, gate_up[at_gate]);
          d_gate_up[at_up] = d * activation_reference(kind, gate_up[at_gate]);
        }
      }
      // Products of numbers up to 100: an error of 2e-7 in either grows as much.
      const double relative = relative_error_of(dtype);
      conforms({{"y", y, relative, 3e-5}, {"d_gate_up", d_gate_up, relative, 3e-5}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor both = lab.put(gate_up, dtype, {kTokens, 2 * width});
                 const Tensor y_out = lab.unset(dtype, {kTokens, width});
                 lab.ops().gated_activation_forward(kind, both, y_out, lab.stream());
                 lab.ops().gated_activation_backward(
                     kind, both, lab.put(dy, dtype, {kTokens, width}), both, lab.stream());
                 return {lab.get(y_out), lab.get(both)};  // the gradient lies where gate_up was
               });
    }
  }
}

TEST_CASE("gates with a limit and their gradients follow the fp64 formulas", "[ops][activation]") {
  constexpr float kLimit = 5.0F;
  constexpr double kBound = kLimit;
  const auto value = [=](double gate, double up) {
    const double g = std::min(gate, kBound);
    return (std::clamp(up, -kBound, kBound) + 1.0) * g / (1.0 + std::exp(-1.702 * g));
  };
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t width : {7, 100, 1024}) {
      CAPTURE(name_of(dtype), width);
      const auto width_F = static_cast<std::size_t>(width);
      Values gate_up = inputs(dtype, kTokens * 2 * width);
      // At the limits themselves gradients pass, as PyTorch's clamp lets them.
      gate_up[1] = gate_up[width_F + 2] = kBound;
      gate_up[width_F + 3] = -kBound;
      const Values dy = rounded_to(dtype, random_values(kTokens * width, 2));
      Values y(dy.size());
      Values d_gate_up(gate_up.size());
      for (std::size_t row = 0; row < kTokens; ++row) {
        for (std::size_t f = 0; f < width_F; ++f) {
          const std::size_t at_gate = row * 2 * width_F + f;
          const std::size_t at_up = at_gate + width_F;
          const double gate = gate_up[at_gate];
          const double up = gate_up[at_up];
          const double d = dy[row * width_F + f];
          y[row * width_F + f] = value(gate, up);
          const double g = std::min(gate, kBound);
          const double slope = finite_difference(
              [&](const Values& x) { return x[0] / (1.0 + std::exp(-1.702 * x[0])); }, {g})[0];
          d_gate_up[at_gate] =
              gate > kBound ? 0.0 : d * (std::clamp(up, -kBound, kBound) + 1.0) * slope;
          d_gate_up[at_up] = std::abs(up) > kBound ? 0.0 : d * g / (1.0 + std::exp(-1.702 * g));
        }
      }
      const double relative = relative_error_of(dtype);
      conforms({{"y", y, relative, 3e-5}, {"d_gate_up", d_gate_up, relative, 3e-5}},
               [&](Lab& lab) -> std::vector<Values> {
                 const GatedActivation activation{ActivationKind::kSilu, kLimit};
                 const Tensor both = lab.put(gate_up, dtype, {kTokens, 2 * width});
                 const Tensor y_out = lab.unset(dtype, {kTokens, width});
                 lab.ops().gated_activation_forward(activation, both, y_out, lab.stream());
                 lab.ops().gated_activation_backward(
                     activation, both, lab.put(dy, dtype, {kTokens, width}), both, lab.stream());
                 return {lab.get(y_out), lab.get(both)};
               });
    }
  }
}

}  // namespace dstrain::test
