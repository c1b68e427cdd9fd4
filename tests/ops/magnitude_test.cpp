// Weights whose rows have magnitudes of their own against fp64: outputs, and gradients, which are
// finite differences of the fp64 forward with lengths that stay.
//
// N tokens, O outputs, R the rank of adapters
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Columns [first, first + width) of rows of `stride`.
struct Case {
  std::int64_t tokens;
  std::int64_t width;
  std::int64_t first;
  std::int64_t stride;
};
const Case kCases[] = {{1, 16, 0, 16}, {70, 24, 8, 64}, {33, 13, 3, 21}, {131, 200, 0, 200}};

struct Operands {
  Values x;
  Values magnitudes;
  Values squares;
  Values bias;
  Values y;  ///< before
};

/// Of all columns; those outside the case's stay as they were.
Values forward(const Case& c, const Operands& in, bool scales, bool has_bias, bool adds) {
  Values y = in.y;
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    for (std::int64_t o = 0; o < c.width; ++o) {
      const auto at = static_cast<std::size_t>(n * c.stride + c.first + o);
      const auto of = static_cast<std::size_t>(o);
      const double factor = scales ? in.magnitudes[of] / std::sqrt(in.squares[of]) : 1.0;
      y[at] = in.x[at] * factor + (has_bias ? in.bias[of] : 0.0) + (adds ? in.y[at] : 0.0);
    }
  }
  return y;
}

Operands operands_of(const Case& c, DType dtype) {
  Operands in{.x = rounded_to(dtype, random_values(c.tokens * c.stride, 1)),
              .magnitudes = rounded_to(dtype, random_values(c.width, 2, 2.0)),
              .squares = random_values(c.width, 3),
              .bias = rounded_to(dtype, random_values(c.width, 4)),
              .y = rounded_to(dtype, random_values(c.tokens * c.stride, 5))};
  for (double& square : in.squares) {
    square = square * square + 0.5;
  }
  in.squares = rounded_to(DType::kF32, in.squares);
  return in;
}

}  // namespace

TEST_CASE("outputs have their rows' magnitudes", "[ops][magnitude]") {
  struct Form {
    bool scales;
    bool has_bias;
    bool adds;
  };
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      const Operands in = operands_of(c, dtype);
      for (const Form form : {Form{true, true, false}, Form{true, false, true},
                              Form{false, true, false}, Form{false, false, true}}) {
        CAPTURE(name_of(dtype), c.tokens, c.width, form.scales, form.has_bias, form.adds);
        conforms({{"y", forward(c, in, form.scales, form.has_bias, form.adds),
                   relative_error_of(dtype), 1e-6}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Shape all{c.tokens, c.stride};
                   const Tensor x = lab.put(in.x, dtype, all);
                   const Tensor y = lab.put(in.y, dtype, all);
                   const auto vector = [&](bool is_there, const Values& values, DType of) {
                     return is_there ? ConstTensor(lab.put(values, of, {c.width})) : ConstTensor{};
                   };
                   lab.ops().magnitude_forward(
                       {x, c.first, c.width}, vector(form.scales, in.magnitudes, dtype),
                       vector(form.scales, in.squares, DType::kF32),
                       vector(form.has_bias, in.bias, dtype), {y, c.first, c.width},
                       form.adds ? Write::kAdd : Write::kOverwrite, lab.stream());
                   return {lab.get(y)};
                 });
      }
    }
  }
}

TEST_CASE("gradients of magnitudes and of what they scale are fp64's", "[ops][magnitude]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.width);
      const Operands in = operands_of(c, dtype);
      const Values dy = rounded_to(dtype, random_values(c.tokens * c.stride, 6));
      const auto weighted = [&](const Operands& moved) {
        const Values y = forward(c, moved, true, false, false);
        return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
      };
      Values dx = in.y;
      for (std::int64_t i = 0; i < c.tokens * c.width; ++i) {
        const auto at = static_cast<std::size_t>(i / c.width * c.stride + c.first + i % c.width);
        const auto of = static_cast<std::size_t>(i % c.width);
        dx[at] = dy[at] * in.magnitudes[of] / std::sqrt(in.squares[of]);
      }
      const Values d_magnitudes = finite_difference(
          [&](const Values& moved) {
            Operands with = in;
            with.magnitudes = moved;
            return weighted(with);
          },
          in.magnitudes);
      Values twice = d_magnitudes;
      for (double& value : twice) {
        value *= 2.0;
      }
      const double sums = 2e-6 * static_cast<double>(c.tokens) + 1e-6;
      conforms({{"dx", dx, relative_error_of(dtype), 1e-6},
                {"d_magnitudes", d_magnitudes, 1e-6, sums},
                {"d_magnitudes of two micro-batches", twice, 1e-6, 2.0 * sums}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Shape all{c.tokens, c.stride};
                 const Tensor x = lab.put(in.x, dtype, all);
                 const Tensor slopes = lab.put(dy, dtype, all);
                 const Tensor out = lab.put(in.y, dtype, all);
                 const Tensor magnitudes = lab.put(in.magnitudes, dtype, {c.width});
                 const Tensor squares = lab.put(in.squares, DType::kF32, {c.width});
                 const Tensor d = lab.unset(DType::kF32, {c.width});
                 const auto backward = [&](Write write) {
                   lab.ops().magnitude_backward({slopes, c.first, c.width}, {x, c.first, c.width},
                                                magnitudes, squares, {out, c.first, c.width}, d,
                                                write, lab.stream());
                   return lab.get(d);
                 };
                 const Values of_one = backward(Write::kOverwrite);
                 const Values of_two = backward(Write::kAdd);
                 return {lab.get(out), of_one, of_two};
               });
    }
  }
}

TEST_CASE("without magnitudes the gradient passes as it is", "[ops][magnitude]") {
  const Case c{40, 13, 3, 21};
  const Values dy = rounded_to(DType::kBF16, random_values(c.tokens * c.stride, 6));
  Values dx(dy.size(), 99.0);
  for (std::int64_t i = 0; i < c.tokens * c.width; ++i) {
    const auto at = static_cast<std::size_t>(i / c.width * c.stride + c.first + i % c.width);
    dx[at] = dy[at];
  }
  conforms({{"dx", dx, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    const Shape all{c.tokens, c.stride};
    const Tensor slopes = lab.put(dy, DType::kBF16, all);
    const Tensor out = lab.unset(DType::kBF16, all);
    lab.ops().magnitude_backward({slopes, c.first, c.width}, {slopes, c.first, c.width}, {}, {},
                                 {out, c.first, c.width}, {}, Write::kOverwrite, lab.stream());
    return {lab.get(out)};
  });
}

TEST_CASE("products of rows are added to their sums", "[ops][magnitude]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t rank : {std::int64_t{1}, std::int64_t{8}, std::int64_t{37}}) {
      constexpr std::int64_t kRows = 300;
      const Values a = rounded_to(dtype, random_values(kRows * rank, 7));
      const Values b = rounded_to(DType::kF32, random_values(kRows * rank, 8));
      Values sums = rounded_to(DType::kF32, random_values(kRows, 9));
      const Values before = sums;
      for (std::int64_t i = 0; i < kRows * rank; ++i) {
        sums[static_cast<std::size_t>(i / rank)] +=
            a[static_cast<std::size_t>(i)] * b[static_cast<std::size_t>(i)];
      }
      CAPTURE(name_of(dtype), rank);
      conforms({{"sums", sums, 1e-6, 4e-6}}, [&](Lab& lab) -> std::vector<Values> {
        const Tensor total = lab.put(before, DType::kF32, {kRows});
        lab.ops().add_row_products(lab.put(a, dtype, {kRows, rank}),
                                   lab.put(b, DType::kF32, {kRows, rank}), total, lab.stream());
        return {lab.get(total)};
      });
    }
  }
}

}  // namespace dstrain::test
