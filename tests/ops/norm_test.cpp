// LayerNorm and RMSNorm against fp64, gradients against finite differences of the fp64 forward.
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr double kEpsilon = 1e-5;

struct Reference {
  NormKind kind;
  std::int64_t width;

  /// y, and {mean, 1/deviation} of each row.
  void forward(
      const Values& x, const Values& weight, const Values& bias, Values& y, Values& stats) const {
    const auto width_C = static_cast<std::size_t>(width);
    y.resize(x.size());
    stats.clear();
    for (std::size_t row = 0; row < x.size(); row += width_C) {
      double mean = 0.0;
      double variance = 0.0;
      for (std::size_t c = 0; c < width_C && kind == NormKind::kLayerNorm; ++c) {
        mean += x[row + c] / static_cast<double>(width);
      }
      for (std::size_t c = 0; c < width_C; ++c) {
        variance += (x[row + c] - mean) * (x[row + c] - mean) / static_cast<double>(width);
      }
      const double inverse = 1.0 / std::sqrt(variance + kEpsilon);
      stats.insert(stats.end(), {mean, inverse});
      for (std::size_t c = 0; c < width_C; ++c) {
        const double factor = weight[c] + (kind == NormKind::kRmsNormFromOne ? 1.0 : 0.0);
        y[row + c] = (x[row + c] - mean) * inverse * factor + (bias.empty() ? 0.0 : bias[c]);
      }
    }
  }

  /// Σ dy · y, the scalar whose gradient norm_backward gives.
  [[nodiscard]] double weighted(const Values& x,
                                const Values& weight,
                                const Values& bias,
                                const Values& dy) const {
    Values y;
    Values stats;
    forward(x, weight, bias, y, stats);
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  }
};

struct Case {
  NormKind kind;
  std::int64_t tokens;
  std::int64_t width;
  bool with_delta;
  bool with_bias;
};

const Case kCases[] = {
    {NormKind::kLayerNorm, 1, 7, false, true},
    {NormKind::kLayerNorm, 33, 100, true, true},
    {NormKind::kLayerNorm, 65, 64, true, false},
    {NormKind::kRmsNorm, 1, 100, true, false},
    {NormKind::kRmsNorm, 70, 7, false, false},
    {NormKind::kRmsNorm, 5, 384, true, false},
    {NormKind::kRmsNormFromOne, 9, 7, true, false},
    {NormKind::kRmsNormFromOne, 3, 384, false, false},
};

Values sum_of(const Values& a, const Values& b) {
  Values sum(a.size());
  std::transform(a.begin(), a.end(), b.begin(), sum.begin(), std::plus<>());
  return sum;
}

}  // namespace

TEST_CASE("norm_forward adds the residual and normalises as fp64 does", "[ops][norm]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.width);
      const Shape shape{c.tokens, c.width};
      const Values x = rounded_to(dtype, random_values(shape.numel(), 1));
      const Values delta = rounded_to(dtype, random_values(shape.numel(), 2));
      const Values weight = rounded_to(dtype, random_values(c.width, 3));
      const Values bias = c.with_bias ? rounded_to(dtype, random_values(c.width, 4)) : Values{};
      // The norm sees the sum as it is stored.
      const Values residual = c.with_delta ? rounded_to(dtype, sum_of(x, delta)) : x;
      Values y;
      Values stats;
      Reference{c.kind, c.width}.forward(residual, weight, bias, y, stats);
      // f32: a sum of up to 384 terms; y is of order one.
      conforms({{"residual", residual, 0.0, 0.0},
                {"y", y, relative_error_of(dtype), 3e-6},
                {"stats", stats, 2e-6, 1e-6}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor x_in = lab.put(x, dtype, shape);
                 const Tensor y_out = lab.unset(dtype, shape);
                 const Tensor stats_out = lab.unset(DType::kF32, {c.tokens, 2});
                 lab.ops().norm_forward(
                     {.kind = c.kind,
                      .epsilon = static_cast<float>(kEpsilon),
                      .x_NC = x_in,
                      .delta_NC = c.with_delta ? lab.put(delta, dtype, shape) : Tensor{},
                      .weight_C = lab.put(weight, dtype, {c.width}),
                      .bias_C = c.with_bias ? lab.put(bias, dtype, {c.width}) : Tensor{},
                      .residual_NC = x_in,  // in place
                      .y_NC = y_out,
                      .stats_N2 = stats_out},
                     lab.stream());
                 return {lab.get(x_in), lab.get(y_out), lab.get(stats_out)};
               });
    }
  }
}

TEST_CASE("norm_forward of a stored sum gives the bits that it gave while adding", "[ops][norm]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
        CAPTURE(backend.name, name_of(dtype));
        const Shape shape{33, 107};
        Lab lab(backend.make(1));
        const Tensor residual = lab.unset(dtype, shape);
        NormForward norm{.kind = kind,
                         .epsilon = static_cast<float>(kEpsilon),
                         .x_NC = lab.put(random_values(shape.numel(), 1), dtype, shape),
                         .delta_NC = lab.put(random_values(shape.numel(), 2), dtype, shape),
                         .weight_C = lab.put(random_values(107, 3), dtype, {107}),
                         .bias_C = lab.put(random_values(107, 4), dtype, {107}),
                         .residual_NC = residual,
                         .y_NC = lab.unset(dtype, shape),
                         .stats_N2 = lab.unset(DType::kF32, {33, 2})};
        lab.ops().norm_forward(norm, lab.stream());
        const Values y = lab.get(norm.y_NC);
        const Values stats = lab.get(norm.stats_N2);

        norm.x_NC = residual;
        norm.delta_NC = {};
        norm.y_NC = lab.unset(dtype, shape);
        norm.stats_N2 = lab.unset(DType::kF32, {33, 2});
        lab.ops().norm_forward(norm, lab.stream());
        CHECK(lab.get(norm.y_NC) == y);
        CHECK(lab.get(norm.stats_N2) == stats);
      }
    }
  }
}

TEST_CASE("norm_backward is the gradient of norm_forward", "[ops][norm]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.width);
      const Shape shape{c.tokens, c.width};
      const Values x = rounded_to(dtype, random_values(shape.numel(), 1));
      const Values dy = rounded_to(dtype, random_values(shape.numel(), 2));
      const Values weight = rounded_to(dtype, random_values(c.width, 3));
      const Values bias = c.with_bias ? random_values(c.width, 4) : Values{};
      const Values earlier_dx = rounded_to(dtype, random_values(shape.numel(), 5));
      const Values earlier_dweight = rounded_to(DType::kF32, random_values(c.width, 6));
      const Reference reference{c.kind, c.width};
      Values y;
      Values stats;
      reference.forward(x, weight, bias, y, stats);

      // Rows are independent: the difference of one row needs that row alone.
      Values dx;
      for (std::int64_t row = 0; row < c.tokens; ++row) {
        const auto begin = row * c.width;
        const Values x_row(x.begin() + begin, x.begin() + begin + c.width);
        const Values dy_row(dy.begin() + begin, dy.begin() + begin + c.width);
        const Values slope = finite_difference(
            [&](const Values& moved) { return reference.weighted(moved, weight, bias, dy_row); },
            x_row);
        dx.insert(dx.end(), slope.begin(), slope.end());
      }
      const Values dweight = finite_difference(
          [&](const Values& moved) { return reference.weighted(x, moved, bias, dy); }, weight);
      const Values dbias = finite_difference(
          [&](const Values& moved) { return reference.weighted(x, weight, moved, dy); }, bias);

      // dx is of order 1/deviation ≈ 2 and loses digits to two cancelling sums.
      std::vector<Expected> expected{
          {"dx", dx, relative_error_of(dtype), 1e-5},
          {"dx added", sum_of(dx, earlier_dx), relative_error_of(dtype), 1e-5},
          {"dweight", dweight, 5e-6, 1e-5},
          {"dweight added", sum_of(dweight, earlier_dweight), 5e-6, 1e-5},
          {"dx in place of dy", dx, relative_error_of(dtype), 1e-5}};
      if (c.with_bias) {
        expected.push_back({"dbias", dbias, 5e-6, 1e-5});
      }
      conforms(expected, [&](Lab& lab) -> std::vector<Values> {
        NormBackward norm{.kind = c.kind,
                          .dy_NC = lab.put(dy, dtype, shape),
                          .x_NC = lab.put(x, dtype, shape),
                          .weight_C = lab.put(weight, dtype, {c.width}),
                          .stats_N2 = lab.put(stats, DType::kF32, {c.tokens, 2}),
                          .dx_NC = lab.unset(dtype, shape),
                          .dx_write = Write::kOverwrite,
                          .dweight_C = lab.unset(DType::kF32, {c.width}),
                          .dbias_C = c.with_bias ? lab.unset(DType::kF32, {c.width}) : Tensor{},
                          .parameter_write = Write::kOverwrite};
        lab.ops().norm_backward(norm, lab.stream());
        const Values dx_out = lab.get(norm.dx_NC);
        const Values dweight_out = lab.get(norm.dweight_C);
        const Values dbias_out = c.with_bias ? lab.get(norm.dbias_C) : Values{};

        norm.dx_NC = lab.put(earlier_dx, dtype, shape);
        norm.dx_write = Write::kAdd;
        norm.dweight_C = lab.put(earlier_dweight, DType::kF32, {c.width});
        norm.parameter_write = Write::kAdd;
        lab.ops().norm_backward(norm, lab.stream());
        std::vector<Values> outputs{dx_out, lab.get(norm.dx_NC), dweight_out,
                                    lab.get(norm.dweight_C)};
        norm.dy_NC = norm.dx_NC = lab.put(dy, dtype, shape);
        norm.dx_write = Write::kOverwrite;
        lab.ops().norm_backward(norm, lab.stream());
        outputs.push_back(lab.get(norm.dx_NC));
        if (c.with_bias) {
          outputs.push_back(dbias_out);
        }
        return outputs;
      });
    }
  }
}

// A GPU's block sums the weight's gradient in shared memory: 48 KiB at the first of these widths,
// which is all that it gets unasked, and more at the second.
TEST_CASE("norm_backward takes rows whose sums fill a block's shared memory", "[ops][norm]") {
  for (const std::int64_t width : {6144, 8192}) {
    CAPTURE(width);
    constexpr std::int64_t kTokens = 3;
    const auto width_C = static_cast<std::size_t>(width);
    const Shape shape{kTokens, width};
    const Values x = rounded_to(DType::kBF16, random_values(shape.numel(), 1));
    const Values dy = rounded_to(DType::kBF16, random_values(shape.numel(), 2));
    const Values weight = rounded_to(DType::kBF16, random_values(width, 3));
    const Reference reference{NormKind::kRmsNorm, width};
    Values y;
    Values stats;
    reference.forward(x, weight, {}, y, stats);
    Values dx;
    Values dweight(width_C, 0.0);
    for (std::size_t row = 0; row < kTokens; ++row) {
      const double inverse = stats[2 * row + 1];
      double along = 0.0;  // mean of dy · weight · x̂
      for (std::size_t c = 0; c < width_C; ++c) {
        const std::size_t at = row * width_C + c;
        along += dy[at] * weight[c] * x[at] * inverse / static_cast<double>(width);
        dweight[c] += dy[at] * x[at] * inverse;
      }
      for (std::size_t c = 0; c < width_C; ++c) {
        const std::size_t at = row * width_C + c;
        dx.push_back((dy[at] * weight[c] - x[at] * inverse * along) * inverse);
      }
    }
    // The formula itself, where a difference is quickly made: in a column.
    constexpr double kStep = 1e-4;
    for (const std::size_t at : {std::size_t{5}, 2 * width_C - 1}) {
      Values moved = x;
      moved[at] = x[at] + kStep;
      const double above = reference.weighted(moved, weight, {}, dy);
      moved[at] = x[at] - kStep;
      CHECK(
          dx[at] ==
          Approx((above - reference.weighted(moved, weight, {}, dy)) / (2.0 * kStep)).margin(1e-6));
    }
    conforms({{"dx", dx, relative_error_of(DType::kBF16), 1e-5}, {"dweight", dweight, 5e-6, 1e-5}},
             [&](Lab& lab) -> std::vector<Values> {
               const NormBackward norm{.kind = NormKind::kRmsNorm,
                                       .dy_NC = lab.put(dy, DType::kBF16, shape),
                                       .x_NC = lab.put(x, DType::kBF16, shape),
                                       .weight_C = lab.put(weight, DType::kBF16, {width}),
                                       .stats_N2 = lab.put(stats, DType::kF32, {kTokens, 2}),
                                       .dx_NC = lab.unset(DType::kBF16, shape),
                                       .dx_write = Write::kOverwrite,
                                       .dweight_C = lab.unset(DType::kF32, {width}),
                                       .dbias_C = {},
                                       .parameter_write = Write::kOverwrite};
               lab.ops().norm_backward(norm, lab.stream());
               return {lab.get(norm.dx_NC), lab.get(norm.dweight_C)};
             });
  }
}

}  // namespace dstrain::test
