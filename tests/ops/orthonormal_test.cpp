// Orthonormal columns against modified Gram-Schmidt in fp64, column by column as PowerSGD states
// it, and by what makes them orthonormal.
//
// N rows, R columns
#include "kernels/math/orthonormal.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Case {
  std::int64_t rows;
  std::int64_t columns;
};
/// One row and one column, as many rows as columns, blocks of rows and their rests, tiles and
/// theirs.
const Case kCases[] = {{1, 1},    {7, 1},    {9, 2},     {3, 3},     {64, 4},
                       {257, 4},  {1000, 7}, {64, 64},   {300, 33},  {513, 64},
                       {9001, 5}, {600, 16}, {8200, 17}, {12'345, 1}};

double product(const Values& p, const Case& c, std::int64_t i, std::int64_t j) {
  double total = 0.0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    total += p[static_cast<std::size_t>(row * c.columns + i)] *
             p[static_cast<std::size_t>(row * c.columns + j)];
  }
  return total;
}

/// Each column divided by its norm + epsilon, and then taken out of the later ones.
Values gram_schmidt(Values p, const Case& c, double epsilon) {
  const auto at = [&](std::int64_t row, std::int64_t j) -> double& {
    return p[static_cast<std::size_t>(row * c.columns + j)];
  };
  for (std::int64_t i = 0; i < c.columns; ++i) {
    const double divisor = std::sqrt(product(p, c, i, i)) + epsilon;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      at(row, i) /= divisor;
    }
    for (std::int64_t j = i + 1; j < c.columns; ++j) {
      const double along = product(p, c, i, j);
      for (std::int64_t row = 0; row < c.rows; ++row) {
        at(row, j) -= along * at(row, i);
      }
    }
  }
  return p;
}

Values orthonormalized(Lab& lab, const Values& p, const Case& c, float epsilon) {
  const Tensor p_NR = lab.put(p, DType::kF32, {c.rows, c.columns});
  lab.ops().orthonormalize_columns(p_NR, epsilon, lab.stream());
  return lab.get(p_NR);
}

/// The largest that products of two columns differ from 0, and of one with itself from 1, or from 0
/// where the column is `zero`.
double worst_product(const Values& q, const Case& c, const std::vector<std::int64_t>& zeros = {}) {
  double worst = 0.0;
  for (std::int64_t i = 0; i < c.columns; ++i) {
    const bool zero = std::find(zeros.begin(), zeros.end(), i) != zeros.end();
    for (std::int64_t j = 0; j <= i; ++j) {
      const double off = std::abs(product(q, c, i, j) - (i == j && !zero ? 1.0 : 0.0));
      worst = std::isnan(off) ? INFINITY : std::max(worst, off);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("columns become those of Gram-Schmidt in fp64, and orthonormal", "[ops][orthonormal]") {
  for (const Case& c : kCases) {
    CAPTURE(c.rows, c.columns);
    Values p = random_values(c.rows * c.columns, 1);
    // Columns of different length, and some that share much.
    for (std::size_t k = 0; k < p.size(); ++k) {
      const auto j = k % static_cast<std::size_t>(c.columns);
      p[k] = (p[k] + 0.5) * std::exp2(static_cast<double>(j % 5) - 2.0);
    }
    p = rounded_to(DType::kF32, p);
    const Values expected = gram_schmidt(p, c, 1e-8);
    // As many random columns as rows: the last ones are mostly taken out, and what is left of them
    // has fewer digits.
    const double absolute = c.rows == c.columns ? 3e-4 : 1e-6;
    conforms({{"q", expected, 1e-6, absolute}, {"worst product", {0.0}, 0.0, 1e-6}},
             [&](Lab& lab) -> std::vector<Values> {
               const Values q = orthonormalized(lab, p, c, 1e-8F);
               return {q, {worst_product(q, c)}};
             });
  }
}

TEST_CASE("columns that share nearly everything become orthonormal", "[ops][orthonormal]") {
  const Case c{500, 6};
  for (const double differing : {1e-2, 1e-4, 1e-5}) {
    CAPTURE(differing);
    const Values shared = random_values(c.rows, 2);
    Values p = random_values(c.rows * c.columns, 3, differing);
    for (std::size_t k = 0; k < p.size(); ++k) {
      p[k] += shared[k / static_cast<std::size_t>(c.columns)];
    }
    p = rounded_to(DType::kF32, p);
    conforms({{"worst product", {0.0}, 0.0, 1e-5}}, [&](Lab& lab) -> std::vector<Values> {
      return {{worst_product(orthonormalized(lab, p, c, 0.0F), c)}};
    });
  }
}

TEST_CASE("columns that earlier ones give, and columns of zeros, become zero",
          "[ops][orthonormal]") {
  const Case c{300, 5};
  Values p = random_values(c.rows * c.columns, 4);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    double* const of_row = p.data() + row * c.columns;
    of_row[1] = 0.0;
    of_row[3] = 0.3 * of_row[0] - 1.7 * of_row[2];
  }
  p = rounded_to(DType::kF32, p);
  for (const float epsilon : {1e-8F, 0.0F}) {
    conforms({{"worst product", {0.0}, 0.0, 1e-6}}, [&](Lab& lab) -> std::vector<Values> {
      return {{worst_product(orthonormalized(lab, p, c, epsilon), c, {1, 3})}};
    });
    const Values nothing(static_cast<std::size_t>(c.rows * c.columns), 0.0);
    conforms({{"zeros", nothing, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
      return {orthonormalized(lab, nothing, c, epsilon)};
    });
  }
}

TEST_CASE("more columns than rows: the first as many become orthonormal, the others zero",
          "[ops][orthonormal]") {
  const Case c{3, 5};
  const Values p = rounded_to(DType::kF32, random_values(c.rows * c.columns, 5));
  conforms({{"worst product", {0.0}, 0.0, 1e-6}}, [&](Lab& lab) -> std::vector<Values> {
    return {{worst_product(orthonormalized(lab, p, c, 1e-8F), c, {3, 4})}};
  });
}

TEST_CASE("epsilon keeps columns small that are small beside it", "[ops][orthonormal]") {
  const Case c{40, 2};
  const Values p = rounded_to(DType::kF32, random_values(c.rows * c.columns, 6, 1e-3));
  const double epsilon = 0.5;
  const double norm = std::sqrt(product(p, c, 0, 0));
  Values first;
  for (std::size_t row = 0; row < 40; ++row) {
    first.push_back(p[2 * row] / (norm + epsilon));
  }
  conforms({{"first column", first, 2e-6, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    const Values q = orthonormalized(lab, p, c, static_cast<float>(epsilon));
    Values column;
    for (std::size_t row = 0; row < 40; ++row) {
      column.push_back(q[2 * row]);
    }
    return {column};
  });
}

TEST_CASE("no columns, no rows and a NaN are taken as they come; too many columns are refused",
          "[ops][orthonormal]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    CAPTURE(backend.name);
    Lab lab(backend.make(1));
    lab.ops().orthonormalize_columns(lab.unset(DType::kF32, {0, 4}), 0.0F, lab.stream());
    lab.ops().orthonormalize_columns(lab.unset(DType::kF32, {4, 0}), 0.0F, lab.stream());
    const Values q = orthonormalized(lab, {1.0, NAN, 2.0, 3.0}, {2, 2}, 0.0F);
    CHECK(q[0] == Approx(1.0 / std::sqrt(5.0)));
    CHECK(std::isnan(q[1]));
    CHECK(std::isnan(q[3]));
    CHECK_THROWS_WITH(
        lab.ops().orthonormalize_columns(lab.unset(DType::kF32, {2, 65}), 0.0F, lab.stream()),
        Catch::Contains("65 columns, expected at most 64"));
  }
}

}  // namespace dstrain::test
