// What f16 overflows to must stay visible until the loss scaler looks at loss and gradients: an
// infinity or a NaN that enters an operation must not leave it as a number.
//
// N tokens, T sequence, C width, V vocabulary
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "kernels/math/activation.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kWidth = 37;  // whole vectors and the rest of one
const Shape kShape{kRows, kWidth};

bool all_finite(const Values& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double value) { return std::isfinite(value); });
}

/// Numbers of order one with `bad` in the last row.
Values with(double bad, std::int64_t column) {
  Values values = random_values(kRows * kWidth, 1);
  values[static_cast<std::size_t>((kRows - 1) * kWidth + column)] = bad;
  return values;
}

/// `run` gets a matrix that is finite but for one element, and gives outputs that each must show
/// it.
void shows(const std::function<std::vector<Values>(Lab&, Tensor bad)>& run) {
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
        for (const std::int64_t column : {std::int64_t{3}, kWidth - 1}) {
          INFO(backend.name << ", " << name_of(dtype) << ", " << bad << " in column " << column);
          Lab lab(backend.make(1));
          const std::vector<Values> outputs = run(lab, lab.put(with(bad, column), dtype, kShape));
          for (std::size_t i = 0; i < outputs.size(); ++i) {
            INFO("output " << i);
            CHECK_FALSE(all_finite(outputs[i]));
          }
        }
      }
    }
  }
}

Tensor ordinary(Lab& lab, DType dtype) {
  return lab.put(random_values(kRows * kWidth, 2), dtype, kShape);
}

}  // namespace

TEST_CASE("sums of squares and losses are not finite after an overflow", "[ops][overflow]") {
  shows([](Lab& lab, Tensor bad) -> std::vector<Values> {
    const Tensor total = lab.unset(DType::kF64, {1});
    const Tensor losses = lab.unset(DType::kF32, {kRows});
    const Tensor again = lab.unset(DType::kF32, {kRows});
    const Tensor targets = lab.put_ids({0, 5, 9});
    Ops& ops = lab.ops();
    ops.sum_of_squares(bad, total, Write::kOverwrite, lab.stream());
    ops.cross_entropy_forward(bad, targets, kWidth, losses, lab.stream());
    ops.cross_entropy_forward_backward(bad, targets, kWidth, {0.5F}, again, lab.stream());
    return {lab.get(total), lab.get(losses), lab.get(again), lab.get(bad)};
  });
}

TEST_CASE(
    "losses and gradients of all slices of a vocabulary are not finite after an overflow in one",
    "[ops][overflow][vocabulary]") {
  for (const std::int32_t target : {5, static_cast<std::int32_t>(kWidth) + 9}) {
    INFO("target " << target);
    shows([&](Lab& lab, Tensor bad) -> std::vector<Values> {
      const VocabSlice first{.first = 0, .vocab_size = 2 * kWidth};
      const VocabSlice second{.first = kWidth, .vocab_size = 2 * kWidth};
      const Tensor other = ordinary(lab, bad.dtype());
      const Tensor targets = lab.put_ids({0, 5, target});
      const Tensor stats = lab.unset(DType::kF32, {2, kRows, 3});
      const Tensor logsumexp = lab.unset(DType::kF32, {kRows});
      const Tensor losses = lab.unset(DType::kF32, {kRows});
      Ops& ops = lab.ops();
      ops.cross_entropy_partial(other, targets, first, stats.rows(0, 1), lab.stream());
      ops.cross_entropy_partial(bad, targets, second, stats.rows(1, 2), lab.stream());
      ops.cross_entropy_combine(stats, logsumexp, losses, lab.stream());
      ops.cross_entropy_gradient(other, targets, first, logsumexp, {0.5F}, lab.stream());
      ops.cross_entropy_gradient(bad, targets, second, logsumexp, {0.5F}, lab.stream());
      return {lab.get(losses), lab.get(other), lab.get(bad)};
    });
  }
}

TEST_CASE("elementwise operations and norms keep an overflow visible", "[ops][overflow]") {
  shows([](Lab& lab, Tensor bad) -> std::vector<Values> {
    const DType dtype = bad.dtype();
    Ops& ops = lab.ops();
    const Tensor sum = lab.unset(dtype, kShape);
    const Tensor activated = lab.unset(dtype, kShape);
    const Tensor slope = lab.unset(dtype, kShape);
    ops.add(bad, ordinary(lab, dtype), sum, lab.stream());
    ops.activation_forward(ActivationKind::kGeluTanh, bad, activated, lab.stream());
    ops.activation_backward(ActivationKind::kGeluTanh, ordinary(lab, dtype), bad, slope,
                            lab.stream());
    const Tensor weight = lab.put(Values(kWidth, 1.0), dtype, {kWidth});
    const Tensor y = lab.unset(dtype, kShape);
    const Tensor dx = lab.unset(dtype, kShape);
    const Tensor stats = lab.unset(DType::kF32, {kRows, 2});
    const Tensor dweight = lab.unset(DType::kF32, {kWidth});
    ops.norm_forward({.kind = NormKind::kRmsNorm,
                      .epsilon = 1e-5F,
                      .x_NC = bad,
                      .delta_NC = {},
                      .weight_C = weight,
                      .bias_C = {},
                      .residual_NC = {},
                      .y_NC = y,
                      .stats_N2 = stats},
                     lab.stream());
    ops.norm_backward({.kind = NormKind::kRmsNorm,
                       .dy_NC = bad,
                       .x_NC = ordinary(lab, dtype),
                       .weight_C = weight,
                       .stats_N2 = lab.put(Values(2 * kRows, 1.0), DType::kF32, {kRows, 2}),
                       .dx_NC = dx,
                       .dx_write = Write::kOverwrite,
                       .dweight_C = dweight,
                       .dbias_C = {},
                       .parameter_write = Write::kOverwrite},
                      lab.stream());
    return {lab.get(sum), lab.get(activated), lab.get(slope),
            lab.get(y),   lab.get(dx),        lab.get(dweight)};
  });
}

TEST_CASE("products of linear layers keep an overflow visible", "[ops][overflow]") {
  shows([](Lab& lab, Tensor bad) -> std::vector<Values> {
    const DType dtype = bad.dtype();
    const Tensor other = ordinary(lab, dtype);
    const Tensor y = lab.unset(dtype, {kRows, kRows});
    const Tensor dw = lab.unset(DType::kF32, {kWidth, kWidth});
    const Tensor dbias = lab.unset(DType::kF32, {kWidth});
    const Tensor weight = lab.put(random_values(kWidth * 5, 3), dtype, {kWidth, 5});
    const Tensor dx = lab.unset(dtype, {kRows, 5});
    Ops& ops = lab.ops();
    ops.linear_forward(bad, other, {}, y, lab.stream());
    ops.linear_backward_input(bad, weight, dx, lab.stream());
    ops.linear_backward_weight(bad, other, dw, Write::kOverwrite, lab.stream());
    ops.linear_backward_bias(bad, dbias, Write::kOverwrite, lab.stream());
    ops.add_bias(bad, lab.put(Values(kWidth, 1.0), dtype, {kWidth}), lab.stream());
    return {lab.get(y), lab.get(dx), lab.get(dw), lab.get(dbias), lab.get(bad)};
  });
}

TEST_CASE("attention keeps an overflow of queries, keys, values and gradients visible",
          "[ops][overflow]") {
  const AttentionShape shape{1, 70, 2, 1, 32};
  const Shape rows{70, 4 * 32};
  const Shape out_rows{70, 2 * 32};
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      // Puts it into q, k and v, in a position that later ones see; an infinity times zero is a
      // NaN.
      for (const std::int64_t column : {5, 64 + 5, 96 + 5}) {
        INFO(backend.name << ", " << name_of(dtype) << ", column " << column);
        Lab lab(backend.make(1));
        const Values sane = random_values(rows.numel(), 1);
        Values broken = sane;
        broken[static_cast<std::size_t>(3 * rows[1] + column)] = INFINITY;
        const Tensor sums = lab.unset(DType::kF32, {1, 2, 70});
        const Tensor delta = lab.unset(DType::kF32, {1, 2, 70});
        const Tensor out = lab.unset(dtype, out_rows);
        const Tensor dqkv = lab.unset(dtype, rows);
        Values dout = random_values(out_rows.numel(), 2);
        const auto run = [&](const Values& qkv) {
          const Tensor in = lab.put(qkv, dtype, rows);
          lab.ops().attention_forward({packed_attention(shape, in), out, sums}, lab.stream());
          lab.ops().attention_backward(
              packed_attention_backward(shape, in, out, sums, lab.put(dout, dtype, out_rows), delta,
                                        dqkv),
              lab.stream());
        };
        run(broken);
        CHECK_FALSE(all_finite(lab.get(out)));
        CHECK_FALSE(all_finite(lab.get(dqkv)));
        dout[static_cast<std::size_t>(69 * out_rows[1] + 7)] = INFINITY;
        run(sane);
        CHECK(all_finite(lab.get(out)));
        CHECK_FALSE(all_finite(lab.get(dqkv)));
      }
    }
  }
}

}  // namespace dstrain::test
