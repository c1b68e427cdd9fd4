// A linear layer and an activation function as one operation, against fp64. Backends may compute
// each of them in one kernel or in two, rounding in between or not: both are within these bounds.
//
// N tokens, I inputs, O outputs
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include <catch2/catch.hpp>

#include "tests/ops/activation_reference.h"

namespace dstrain::test {
namespace {

struct Sizes {
  std::int64_t tokens;
  std::int64_t inputs;
  std::int64_t outputs;
};
/// Some of them are what cuBLASLt takes an activation into its product for: 8 divides the width.
constexpr Sizes kSizes[] = {{1, 7, 100}, {1, 64, 72}, {33, 100, 7}, {5, 24, 40}, {65, 64, 136}};

/// Σ over k of a[row][k] · b[column][k].
double dot(
    const Values& a, std::int64_t row, const Values& b, std::int64_t column, std::int64_t n) {
  double total = 0.0;
  for (std::int64_t k = 0; k < n; ++k) {
    total += a[static_cast<std::size_t>(row * n + k)] * b[static_cast<std::size_t>(column * n + k)];
  }
  return total;
}

/// The error of a tanh in GELU. Where algorithms are timed (scripts/gpu_check), a GPU's product in
/// bf16 may be activated by cuBLASLt, which does not say how: the instruction that GPUs have for it
/// is right to 2⁻¹¹ (PTX ISA, tanh.approx).
double error_of_tanh(DType dtype, ActivationKind kind) {
  const bool may_be_cublaslt = std::getenv("DSTRAIN_TEST_ALGORITHMS") != nullptr &&
                               dtype == DType::kBF16 && kind == ActivationKind::kGeluTanh;
  return may_be_cublaslt ? 0x1p-11 : 0.0;
}

/// How much GELU's slope at x moves with that tanh, at most: of (1 + t)/2 + x/2 · (1 - t²) · u'
/// with u' = √(2/π) (1 + 3 · 0.044715 x²).
double slope_by_tanh(double x) {
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * 0.044715 * x * x);
  return 0.5 + std::abs(x) * inner;
}

Values transposed(const Values& matrix, std::int64_t rows, std::int64_t columns) {
  Values result;
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      result.push_back(matrix[static_cast<std::size_t>(row * columns + column)]);
    }
  }
  return result;
}

void check_forward(DType dtype, ActivationKind kind, const Sizes& s, bool has_bias) {
  const Values x = rounded_to(dtype, random_values(s.tokens * s.inputs, 1));
  const Values w = rounded_to(dtype, random_values(s.outputs * s.inputs, 2));
  const Values bias = rounded_to(dtype, random_values(s.outputs, 3));
  Values pre;
  Values y;
  for (std::int64_t n = 0; n < s.tokens; ++n) {
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      pre.push_back(dot(x, n, w, o, s.inputs) +
                    (has_bias ? bias[static_cast<std::size_t>(o)] : 0.0));
      y.push_back(activation_reference(kind, pre.back()));
    }
  }
  // With pre rounded in between, y has twice its own rounding and a little, as an activation's
  // slope is at most 1.13; where y is flat and near zero, what pre's rounding adds is below 0.3
  // units of it.
  const double relative = relative_error_of(dtype);
  const double largest_pre = std::abs(*std::max_element(
      pre.begin(), pre.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  const double by_tanh = 0.5 * largest_pre * error_of_tanh(dtype, kind);
  // Where rows are not a multiple of 16 bytes, cuBLASLt rounds the product before it adds a bias,
  // which is below 1 here: then pre loses as much again, and what the bias has cancelled of it.
  const bool rounds_twice = has_bias && s.outputs % 8 != 0;
  const double cancelled = rounds_twice ? relative : 0.0;
  conforms(
      {{"pre", pre, (rounds_twice ? 2 : 1) * relative, 2e-5 + cancelled},
       {"y", y, 2.3 * relative + cancelled, 2e-5 + 0.3 * relative + by_tanh + cancelled}},
      [&](Lab& lab) -> std::vector<Values> {
        const Tensor pre_NO = lab.unset(dtype, {s.tokens, s.outputs});
        const Tensor y_NO = lab.unset(dtype, {s.tokens, s.outputs});
        lab.ops().linear_activation_forward(
            kind, lab.put(x, dtype, {s.tokens, s.inputs}), lab.put(w, dtype, {s.outputs, s.inputs}),
            has_bias ? ConstTensor(lab.put(bias, dtype, {s.outputs})) : ConstTensor{}, pre_NO, y_NO,
            lab.stream());
        return {lab.get(pre_NO), lab.get(y_NO)};
      },
      AcrossThreads::kWithinTolerance);  // the library may split its sums by threads
}

void check_backward(DType dtype, ActivationKind kind, const Sizes& s) {
  const Values dy = rounded_to(dtype, random_values(s.tokens * s.outputs, 4));
  const Values w = rounded_to(dtype, random_values(s.outputs * s.inputs, 5));
  const Values pre = rounded_to(dtype, random_values(s.tokens * s.inputs, 6, 6.0));
  const Values w_IO = transposed(w, s.outputs, s.inputs);
  Values d_pre;
  double by_tanh = 0.0;
  for (std::int64_t n = 0; n < s.tokens; ++n) {
    for (std::int64_t i = 0; i < s.inputs; ++i) {
      const double x = pre[static_cast<std::size_t>(n * s.inputs + i)];
      const double product = dot(dy, n, w_IO, i, s.outputs);
      d_pre.push_back(product * activation_slope(kind, x));
      by_tanh =
          std::max(by_tanh, std::abs(product) * slope_by_tanh(x) * error_of_tanh(dtype, kind));
    }
  }
  // The product may be rounded before it is multiplied with the slope, which then is once more.
  conforms(
      {{"d_pre", d_pre, 2.1 * relative_error_of(dtype), 3e-5 + by_tanh}},
      [&](Lab& lab) -> std::vector<Values> {
        const Tensor d_pre_NI = lab.unset(dtype, {s.tokens, s.inputs});
        lab.ops().linear_activation_backward(kind, lab.put(dy, dtype, {s.tokens, s.outputs}),
                                             lab.put(w, dtype, {s.outputs, s.inputs}),
                                             lab.put(pre, dtype, {s.tokens, s.inputs}), d_pre_NI,
                                             lab.stream());
        return {lab.get(d_pre_NI)};
      },
      AcrossThreads::kWithinTolerance);
}

}  // namespace

TEST_CASE("a linear layer and its activation agree with fp64", "[ops][linear][activation]") {
  for (const DType dtype : kComputeDtypes) {
    for (const ActivationKind kind : kActivations) {
      for (const Sizes& s : kSizes) {
        CAPTURE(name_of(dtype), static_cast<int>(kind), s.tokens, s.inputs, s.outputs);
        check_forward(dtype, kind, s, true);
        check_forward(dtype, kind, s, false);
        check_backward(dtype, kind, s);
      }
    }
  }
}

}  // namespace dstrain::test
