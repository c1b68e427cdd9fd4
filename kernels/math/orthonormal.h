// Orthonormal columns by modified Gram-Schmidt, as PowerSGD wants them (Vogels et al. 2019, arXiv
// 1905.13727, algorithm 1): column i is divided by its norm + epsilon and taken out of every later
// one,
//
//   q_i = p_i / (‖p_i‖ + ε),   p_j ← p_j - (q_i · p_j) q_i  for j > i.
//
// All that this asks of the columns are products of two of them. So it is done on the table of
// these products, in f64, where each step changes products of later columns by what it does to the
// columns; beside them goes the matrix of factors that makes the new columns of the old ones. The
// columns are read for the products and once more for the factors, whatever their number.
//
// A product's error is relative to the columns as they were, so that little of a column that
// earlier ones nearly give is right: a second round takes out of the columns, as f32 holds them
// now, what they still share, and corrects their lengths. What is less than 2⁻²⁰ of a column's
// first length is rounding of the numbers that came in: such a column becomes 0.
//
// N rows, R columns
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

enum class OrthonormalRound : std::uint8_t { kDivide, kRepeat };

/// Column i becomes scale · p_i, and every later p_j loses share · (p_i · p_j) · scale · p_i.
struct ColumnStep {
  double scale;
  double share;
};

constexpr std::int64_t kMostOrthonormalColumns = 64;

/// `square`: p_i · p_i as earlier columns left it; `first_square`: as it came. `first_scale`: what
/// the round before scaled the column by, epsilon with it; 1 where there was none.
DSTRAIN_HD ColumnStep column_step(OrthonormalRound round,
                                  double square,
                                  double first_square,
                                  double first_scale,
                                  double epsilon) {
  constexpr double kLeast = 0x1p-40;  // squared
  if (square <= kLeast * first_square) {
    return {0.0, 0.0};
  }
  const double scale = 1.0 / (__builtin_sqrt(square) + epsilon * first_scale);
  return {scale, round == OrthonormalRound::kDivide ? scale : 1.0 / (square * scale)};
}

/// Takes column i out of column j > i, in one element of column j: rows up to i of factors_RR,
/// which are of columns that are not yet scaled, and the rows after it of products_RR. Of both the
/// upper triangle counts.
DSTRAIN_HD void take_out_column(const ColumnStep& step,
                                std::int64_t columns,
                                std::int64_t i,
                                std::int64_t row,
                                std::int64_t j,
                                double* products_RR,
                                double* factors_RR) {
  const double* const products_i = products_RR + i * columns;
  const double both = step.share * step.scale;
  if (row <= i) {
    factors_RR[row * columns + j] -= both * products_i[j] * factors_RR[row * columns + i];
  } else {
    products_RR[row * columns + j] -=
        both * (2.0 - both * products_i[i]) * products_i[row] * products_i[j];
  }
}

}  // namespace dstrain
