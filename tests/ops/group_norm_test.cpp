// Norms of queries and keys against fp64, gradients against finite differences of the fp64 forward.
#include "kernels/group_norm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr double kEpsilon = 1e-5;

/// Groups of columns of a matrix with `stride` columns, from column `first` on.
struct Case {
  std::int64_t tokens;
  std::int64_t groups;
  std::int64_t width;
  std::int64_t first;
  std::int64_t stride;
  double weight_offset = 0.0;

  [[nodiscard]] std::int64_t columns() const { return groups * width; }
  [[nodiscard]] std::int64_t numel() const { return tokens * columns(); }
};

const Case kCases[] = {
    {1, 1, 7, 0, 7},         // the whole of a row
    {33, 3, 16, 8, 80},      // Qwen3: heads among others, which vectors and packs of eight fit
    {70, 2, 7, 3, 23},       // and which they do not
    {5, 1, 384, 40, 430},    // OLMo 2: all heads at once
    {9, 2, 16, 8, 80, 1.0},  // Gemma 3: weights around zero
    {9, 2, 7, 3, 23, 1.0},
};

struct Reference {
  std::int64_t width;
  double weight_offset = 0.0;

  /// y of each group, and its sum of squares.
  void forward(const Values& x, const Values& weight, Values& y, Values& squares) const {
    const auto width_W = static_cast<std::size_t>(width);
    y.resize(x.size());
    squares.clear();
    for (std::size_t at = 0; at < x.size(); at += width_W) {
      double sum = 0.0;
      for (std::size_t c = 0; c < width_W; ++c) {
        sum += x[at + c] * x[at + c];
      }
      squares.push_back(sum);
      const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(width) + kEpsilon);
      for (std::size_t c = 0; c < width_W; ++c) {
        y[at + c] = x[at + c] * inverse * (weight_offset + weight[c]);
      }
    }
  }
  /// Σ dy · y, the scalar whose gradient group_norm_backward gives.
  [[nodiscard]] double weighted(const Values& x, const Values& weight, const Values& dy) const {
    Values y;
    Values squares;
    forward(x, weight, y, squares);
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  }
};

/// A matrix of 99s with `values` in the columns of the case.
Values surrounded(const Case& c, const Values& values) {
  Values matrix(static_cast<std::size_t>(c.tokens * c.stride), 99.0);
  for (std::int64_t row = 0; row < c.tokens; ++row) {
    std::copy_n(values.begin() + row * c.columns(), c.columns(),
                matrix.begin() + row * c.stride + c.first);
  }
  return matrix;
}

Columns put(Lab& lab, const Case& c, const Values& values, DType dtype) {
  return {lab.put(surrounded(c, values), dtype, {c.tokens, c.stride}), c.first, c.columns()};
}

}  // namespace

TEST_CASE("a norm of groups of columns is fp64's, beside or in place of what it reads",
          "[ops][norm]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.groups, c.width);
      const Values x = rounded_to(dtype, random_values(c.numel(), 1));
      const Values weight = rounded_to(dtype, random_values(c.width, 2));
      Values y;
      Values squares;
      Reference{c.width, c.weight_offset}.forward(x, weight, y, squares);
      conforms({{"squares", squares, 2e-6, 1e-6},
                {"y", surrounded(c, y), relative_error_of(dtype), 3e-6},
                {"y in place", surrounded(c, y), relative_error_of(dtype), 3e-6}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Columns x_in = put(lab, c, x, dtype);
                 const Tensor squares_NG = lab.unset(DType::kF32, {c.tokens, c.groups});
                 lab.ops().group_squares(x_in, c.width, squares_NG, lab.stream());
                 const Columns beside(lab.unset(dtype, {c.tokens, c.stride}), c.first, c.columns());
                 GroupNormForward norm{.epsilon = static_cast<float>(kEpsilon),
                                       .norm_width = c.width,
                                       .x = x_in,
                                       .weight_W = lab.put(weight, dtype, {c.width}),
                                       .weight_offset = static_cast<float>(c.weight_offset),
                                       .squares_NG = squares_NG,
                                       .y = beside};
                 lab.ops().group_norm_forward(norm, lab.stream());
                 norm.y = x_in;
                 lab.ops().group_norm_forward(norm, lab.stream());
                 return {lab.get(squares_NG), lab.get(beside.matrix()), lab.get(x_in.matrix())};
               });
    }
  }
}

TEST_CASE("the gradient of a norm of groups of columns is that of its forward", "[ops][norm]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.groups, c.width);
      const Values x = rounded_to(dtype, random_values(c.numel(), 1));
      const Values weight = rounded_to(dtype, random_values(c.width, 2));
      const Values dy = rounded_to(dtype, random_values(c.numel(), 3));
      const Values earlier = rounded_to(DType::kF32, random_values(c.width, 4));
      const Reference reference{c.width, c.weight_offset};
      Values y;
      Values squares;
      reference.forward(x, weight, y, squares);
      // Groups are independent: the difference of one needs that one alone.
      Values dx;
      for (std::int64_t at = 0; at < c.numel(); at += c.width) {
        const Values x_group(x.begin() + at, x.begin() + at + c.width);
        const Values dy_group(dy.begin() + at, dy.begin() + at + c.width);
        const Values slope = finite_difference(
            [&](const Values& moved) { return reference.weighted(moved, weight, dy_group); },
            x_group);
        dx.insert(dx.end(), slope.begin(), slope.end());
      }
      const Values dweight = finite_difference(
          [&](const Values& moved) { return reference.weighted(x, moved, dy); }, weight);
      Values added = dweight;
      std::transform(added.begin(), added.end(), earlier.begin(), added.begin(), std::plus<>());

      // dx is of order 1/deviation ≈ 2 and loses digits to a cancelling sum.
      conforms({{"dx", surrounded(c, dx), relative_error_of(dtype), 1e-5},
                {"dweight", dweight, 5e-6, 1e-5},
                {"dx in place", surrounded(c, dx), relative_error_of(dtype), 1e-5},
                {"dweight added", added, 5e-6, 1e-5}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Columns x_in = put(lab, c, x, dtype);
                 const Columns dy_in = put(lab, c, dy, dtype);
                 const Tensor weight_W = lab.put(weight, dtype, {c.width});
                 const Tensor products_NG = lab.unset(DType::kF32, {c.tokens, c.groups});
                 lab.ops().group_products(dy_in, x_in, weight_W,
                                          static_cast<float>(c.weight_offset), products_NG,
                                          lab.stream());
                 GroupNormBackward norm{
                     .epsilon = static_cast<float>(kEpsilon),
                     .norm_width = c.width,
                     .dy = dy_in,
                     .x = x_in,
                     .weight_W = weight_W,
                     .weight_offset = static_cast<float>(c.weight_offset),
                     .squares_NG = lab.put(squares, DType::kF32, {c.tokens, c.groups}),
                     .products_NG = products_NG,
                     .dx = {lab.unset(dtype, {c.tokens, c.stride}), c.first, c.columns()},
                     .dweight_W = lab.unset(DType::kF32, {c.width}),
                     .weight_write = Write::kOverwrite};
                 lab.ops().group_norm_backward(norm, lab.stream());
                 const Values dx_beside = lab.get(norm.dx.matrix());
                 const Values dweight_out = lab.get(norm.dweight_W);
                 norm.dx = dy_in;
                 norm.dweight_W = lab.put(earlier, DType::kF32, {c.width});
                 norm.weight_write = Write::kAdd;
                 lab.ops().group_norm_backward(norm, lab.stream());
                 return {dx_beside, dweight_out, lab.get(dy_in.matrix()), lab.get(norm.dweight_W)};
               });
    }
  }
}

// A group of 12,288 takes a GPU's block more shared memory than it gets unasked; here it is cut
// over two ranks, whose squares and products are added as an all-reduce would.
TEST_CASE("two ranks with half of a group each norm it as one rank with all of it", "[ops][norm]") {
  for (const std::int64_t whole : {20, 24576}) {
    CAPTURE(whole);
    constexpr std::int64_t kTokens = 3;
    const Values x = rounded_to(DType::kF32, random_values(kTokens * whole, 1));
    const Values weight = rounded_to(DType::kF32, random_values(whole, 2));
    const Values dy = rounded_to(DType::kF32, random_values(kTokens * whole, 3));
    const auto run = [&](Lab& lab, std::int64_t ranks) -> std::vector<Values> {
      const std::int64_t width = whole / ranks;
      const Tensor x_all = lab.put(x, DType::kF32, {kTokens, whole});
      const Tensor dy_all = lab.put(dy, DType::kF32, {kTokens, whole});
      const Tensor weight_all = lab.put(weight, DType::kF32, {whole});
      Values squares(kTokens, 0.0);
      Values products(kTokens, 0.0);
      const auto add = [&](const Tensor& part, Values& sums) {
        const Values values = lab.get(part);
        std::transform(sums.begin(), sums.end(), values.begin(), sums.begin(), std::plus<>());
      };
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const Tensor sums = lab.unset(DType::kF32, {kTokens, 1});
        const Columns x_part(x_all, rank * width, width);
        lab.ops().group_squares(x_part, width, sums, lab.stream());
        add(sums, squares);
        lab.ops().group_products(Columns(dy_all, rank * width, width), x_part,
                                 weight_all.flat(rank * width, (rank + 1) * width), 0.0F, sums,
                                 lab.stream());
        add(sums, products);
      }
      const Tensor y = lab.unset(DType::kF32, {kTokens, whole});
      const Tensor dx = lab.unset(DType::kF32, {kTokens, whole});
      const Tensor dweight = lab.unset(DType::kF32, {whole});
      const Tensor squares_NG = lab.put(squares, DType::kF32, {kTokens, 1});
      const Tensor products_NG = lab.put(products, DType::kF32, {kTokens, 1});
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t first = rank * width;
        const Tensor weight_W = weight_all.flat(first, first + width);
        lab.ops().group_norm_forward({.epsilon = static_cast<float>(kEpsilon),
                                      .norm_width = whole,
                                      .x = Columns(x_all, first, width),
                                      .weight_W = weight_W,
                                      .squares_NG = squares_NG,
                                      .y = {y, first, width}},
                                     lab.stream());
        lab.ops().group_norm_backward({.epsilon = static_cast<float>(kEpsilon),
                                       .norm_width = whole,
                                       .dy = Columns(dy_all, first, width),
                                       .x = Columns(x_all, first, width),
                                       .weight_W = weight_W,
                                       .squares_NG = squares_NG,
                                       .products_NG = products_NG,
                                       .dx = {dx, first, width},
                                       .dweight_W = dweight.flat(first, first + width),
                                       .weight_write = Write::kOverwrite},
                                      lab.stream());
      }
      return {lab.get(y), lab.get(dx), lab.get(dweight)};
    };
    for (const BackendUnderTest& backend : backends_under_test()) {
      CAPTURE(backend.name);
      Lab lab(backend.make(1));
      const std::vector<Values> one = run(lab, 1);
      const std::vector<Values> two = run(lab, 2);
      for (std::size_t output = 0; output < one.size(); ++output) {
        double worst = 0.0;
        for (std::size_t i = 0; i < one[output].size(); ++i) {
          worst = std::max(worst, std::abs(one[output][i] - two[output][i]));
        }
        CAPTURE(output);
        CHECK(worst < 2e-5);  // sums of so many terms in f32, in another order
      }
    }
  }
}

TEST_CASE("a norm of groups of columns refuses what does not fit together", "[ops][norm]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    CAPTURE(backend.name);
    Lab lab(backend.make(1));
    const Tensor x = lab.unset(DType::kF32, {2, 12});
    const Tensor sums = lab.unset(DType::kF32, {2, 3});
    CHECK_THROWS_AS(lab.ops().group_squares(Tensor(x), 5, sums, lab.stream()), InternalError);
    CHECK_THROWS_AS(lab.ops().group_squares(Tensor(x), 6, sums, lab.stream()), InternalError);
    CHECK_THROWS_AS(Columns(x, 8, 5), InternalError);
    // The norm is over fewer columns than the group has.
    CHECK_THROWS_AS(lab.ops().group_norm_forward({.epsilon = 1e-5F,
                                                  .norm_width = 3,
                                                  .x = Tensor(x),
                                                  .weight_W = lab.unset(DType::kF32, {4}),
                                                  .squares_NG = sums,
                                                  .y = x},
                                                 lab.stream()),
                    InternalError);
  }
}

}  // namespace dstrain::test
