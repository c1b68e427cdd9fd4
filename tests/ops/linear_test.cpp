// Linear layers through Ops: products at awkward sizes, and the bias gradient. How CpuMatmul
// chooses and packs is matmul_test's subject.
//
// N tokens, I inputs, O outputs
#include <algorithm>
#include <functional>

#include <catch2/catch.hpp>

#include "kernels/math/activation.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Σ over k of a(k) · b(k) for every (row, column).
Values products(std::int64_t rows,
                std::int64_t columns,
                std::int64_t inner,
                const std::function<double(std::int64_t, std::int64_t)>& a,
                const std::function<double(std::int64_t, std::int64_t)>& b) {
  Values result;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      double total = 0.0;
      for (std::int64_t k = 0; k < inner; ++k) {
        total += a(row, k) * b(k, column);
      }
      result.push_back(total);
    }
  }
  return result;
}

struct Sizes {
  std::int64_t tokens;
  std::int64_t inputs;
  std::int64_t outputs;
};

}  // namespace

TEST_CASE("the three products of a linear layer agree with fp64", "[ops][linear]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Sizes& s : {Sizes{1, 7, 100}, {1, 133, 70}, {33, 100, 7}, {65, 64, 257}}) {
      CAPTURE(name_of(dtype), s.tokens, s.inputs, s.outputs);
      const auto at = [](const Values& m, std::int64_t width, std::int64_t row, std::int64_t col) {
        return m[static_cast<std::size_t>(row * width + col)];
      };
      const Values x = rounded_to(dtype, random_values(s.tokens * s.inputs, 1));
      const Values w = rounded_to(dtype, random_values(s.outputs * s.inputs, 2));
      const Values bias = rounded_to(dtype, random_values(s.outputs, 3));
      const Values dy = rounded_to(dtype, random_values(s.tokens * s.outputs, 4));
      Values y = products(
          s.tokens, s.outputs, s.inputs, [&](auto n, auto i) { return at(x, s.inputs, n, i); },
          [&](auto i, auto o) { return at(w, s.inputs, o, i); });
      const Values dx = products(
          s.tokens, s.inputs, s.outputs, [&](auto n, auto o) { return at(dy, s.outputs, n, o); },
          [&](auto o, auto i) { return at(w, s.inputs, o, i); });
      const Values dw = products(
          s.outputs, s.inputs, s.tokens, [&](auto o, auto n) { return at(dy, s.outputs, n, o); },
          [&](auto n, auto i) { return at(x, s.inputs, n, i); });
      Values with_bias = y;
      for (std::size_t i = 0; i < y.size(); ++i) {
        with_bias[i] += bias[i % bias.size()];
      }
      Values twice = dw;
      std::transform(dw.begin(), dw.end(), twice.begin(), [](double value) { return 2 * value; });
      // Sums of up to 257 products of order one, of which f32 keeps about six digits.
      const double relative = relative_error_of(dtype);
      conforms(
          {{"y", y, relative, 2e-5},
           {"y in f32", with_bias, 2e-6, 2e-5},
           {"dx", dx, relative, 2e-5},
           {"dw added to itself", twice, 2e-6, 4e-5}},
          [&](Lab& lab) -> std::vector<Values> {
            const Tensor x_in = lab.put(x, dtype, {s.tokens, s.inputs});
            const Tensor w_in = lab.put(w, dtype, {s.outputs, s.inputs});
            const Tensor dy_in = lab.put(dy, dtype, {s.tokens, s.outputs});
            const Tensor y_out = lab.unset(dtype, {s.tokens, s.outputs});
            const Tensor y_wide = lab.unset(DType::kF32, {s.tokens, s.outputs});
            const Tensor dx_out = lab.unset(dtype, {s.tokens, s.inputs});
            const Tensor dw_out = lab.unset(DType::kF32, {s.outputs, s.inputs});
            Ops& ops = lab.ops();
            ops.linear_forward(x_in, w_in, {}, y_out, lab.stream());
            ops.linear_forward(x_in, w_in, lab.put(bias, dtype, {s.outputs}), y_wide, lab.stream());
            ops.linear_backward_input(dy_in, w_in, dx_out, lab.stream());
            ops.linear_backward_weight(dy_in, x_in, dw_out, Write::kOverwrite, lab.stream());
            ops.linear_backward_weight(dy_in, x_in, dw_out, Write::kAdd, lab.stream());
            return {lab.get(y_out), lab.get(y_wide), lab.get(dx_out), lab.get(dw_out)};
          },
          AcrossThreads::kWithinTolerance);  // the library may split its sums by threads
    }
  }
}

// This is how parameters of odd sizes lie side by side.
TEST_CASE("a bias may begin anywhere", "[ops][linear]") {
  constexpr Sizes kSize{5, 64, 24};
  for (const DType dtype : kComputeDtypes) {
    const Values x = rounded_to(dtype, random_values(kSize.tokens * kSize.inputs, 1));
    const Values w = rounded_to(dtype, random_values(kSize.outputs * kSize.inputs, 2));
    for (const std::int64_t begin : {0, 1, 3, 8}) {
      CAPTURE(name_of(dtype), begin);
      const Values around = rounded_to(dtype, random_values(begin + kSize.outputs, 3));
      Values y;
      for (std::int64_t n = 0; n < kSize.tokens; ++n) {
        for (std::int64_t o = 0; o < kSize.outputs; ++o) {
          double total = around[static_cast<std::size_t>(begin + o)];
          for (std::int64_t i = 0; i < kSize.inputs; ++i) {
            total += x[static_cast<std::size_t>(n * kSize.inputs + i)] *
                     w[static_cast<std::size_t>(o * kSize.inputs + i)];
          }
          y.push_back(total);
        }
      }
      // Backends may round the product before they add the bias.
      const double relative = 2.0 * relative_error_of(dtype);
      const double absolute = 2e-5 + relative_error_of(dtype);
      conforms(
          {{"y", y, relative, absolute}, {"pre", y, relative, absolute}},
          [&](Lab& lab) -> std::vector<Values> {
            const Tensor x_in = lab.put(x, dtype, {kSize.tokens, kSize.inputs});
            const Tensor w_in = lab.put(w, dtype, {kSize.outputs, kSize.inputs});
            const Tensor all = lab.put(around, dtype, {begin + kSize.outputs});
            const Tensor bias = all.flat(begin, begin + kSize.outputs);
            const Tensor y_out = lab.unset(dtype, {kSize.tokens, kSize.outputs});
            const Tensor pre = lab.unset(dtype, {kSize.tokens, kSize.outputs});
            const Tensor gelu = lab.unset(dtype, {kSize.tokens, kSize.outputs});
            lab.ops().linear_forward(x_in, w_in, bias, y_out, lab.stream());
            lab.ops().linear_activation_forward(ActivationKind::kGeluTanh, x_in, w_in, bias, pre,
                                                gelu, lab.stream());
            return {lab.get(y_out), lab.get(pre)};
          },
          AcrossThreads::kWithinTolerance);
    }
  }
}

TEST_CASE("add_bias adds to every row and rounds once", "[ops][linear]") {
  for (const DType dtype : kComputeDtypes) {
    for (const auto& [tokens, outputs] :
         {std::pair<std::int64_t, std::int64_t>{1, 7}, {33, 100}, {65, 257}}) {
      CAPTURE(name_of(dtype), tokens, outputs);
      const Values y = rounded_to(dtype, random_values(tokens * outputs, 1));
      const Values bias = rounded_to(dtype, random_values(outputs, 2));
      Values sum = y;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += bias[i % bias.size()];
      }
      conforms({{"y", rounded_to(dtype, sum), 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
        const Tensor out = lab.put(y, dtype, {tokens, outputs});
        lab.ops().add_bias(out, lab.put(bias, dtype, {outputs}), lab.stream());
        return {lab.get(out)};
      });
    }
  }
}

TEST_CASE("linear_backward_bias sums columns in f32", "[ops][linear]") {
  for (const DType dtype : kComputeDtypes) {
    for (const auto& [tokens, outputs] :
         {std::pair<std::int64_t, std::int64_t>{1, 7}, {33, 100}, {257, 64}, {1500, 257}}) {
      CAPTURE(name_of(dtype), tokens, outputs);
      const Values dy = rounded_to(dtype, random_values(tokens * outputs, 1));
      const Values earlier = rounded_to(DType::kF32, random_values(outputs, 2));
      Values dbias(earlier.size(), 0.0);
      for (std::size_t i = 0; i < dy.size(); ++i) {
        dbias[i % earlier.size()] += dy[i];
      }
      Values added = earlier;
      std::transform(added.begin(), added.end(), dbias.begin(), added.begin(), std::plus<>());
      // Up to 1500 terms of order one: partial sums of order 30 with an error of 2e-6 each.
      conforms({{"dbias", dbias, 1e-6, 2e-5}, {"dbias added", added, 1e-6, 2e-5}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor in = lab.put(dy, dtype, {tokens, outputs});
                 const Tensor first = lab.unset(DType::kF32, {outputs});
                 const Tensor second = lab.put(earlier, DType::kF32, {outputs});
                 lab.ops().linear_backward_bias(in, first, Write::kOverwrite, lab.stream());
                 lab.ops().linear_backward_bias(in, second, Write::kAdd, lab.stream());
                 return {lab.get(first), lab.get(second)};
               });
    }
  }
}

}  // namespace dstrain::test
