// Orthonormal columns (kernels/math/orthonormal.h). A task is a block of rows, whose products are
// added in the order of the blocks.
//
// N rows, R columns
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/orthonormal_operands.h"

namespace dstrain {
namespace {

/// Turns the products of columns into the factors that make them orthonormal. scales_R: what each
/// column was scaled by, for the next round.
void solve(OrthonormalRound round,
           std::int64_t columns,
           double epsilon,
           double* products_RR,
           double* factors_RR,
           double* scales_R) {
  double first_squares[kMostOrthonormalColumns];
  std::fill(factors_RR, factors_RR + columns * columns, 0.0);
  for (std::int64_t i = 0; i < columns; ++i) {
    first_squares[i] = products_RR[i * columns + i];
    factors_RR[i * columns + i] = 1.0;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    const double first_scale = round == OrthonormalRound::kRepeat ? scales_R[i] : 1.0;
    const ColumnStep step =
        column_step(round, products_RR[i * columns + i], first_squares[i], first_scale, epsilon);
    scales_R[i] = step.scale;
    for (std::int64_t row = 0; row < columns; ++row) {
      for (std::int64_t j = std::max(i + 1, row); j < columns; ++j) {
        take_out_column(step, columns, i, row, j, products_RR, factors_RR);
      }
    }
  }
  for (std::int64_t element = 0; element < columns * columns; ++element) {
    factors_RR[element] *= scales_R[element % columns];
  }
}

}  // namespace

void CpuOps::orthonormalize_columns(Tensor p_NR, float epsilon, Stream& stream) {
  const auto [rows, columns] = expect_columns(p_NR);
  if (p_NR.numel() == 0) {
    return;
  }
  stream.run([=, this, rows = rows, columns = columns, threads = threads_on(stream)] {
    constexpr std::int64_t kRows = 256;
    const std::int64_t blocks = (rows + kRows - 1) / kRows;
    const std::int64_t table = columns * columns;
    const auto lease = scratch_.lease(((blocks + 1) * table + columns) * size_of(DType::kF64));
    double* const products = lease.as<double>();  // of every block; those of all in the first
    double* const factors = products + blocks * table;
    const auto for_each_block = [&, rows = rows, columns = columns](auto&& body) {
      parallel_pieces(threads, rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        body(pointer<float>(p_NR) + begin * columns, end - begin, begin / kRows);
      });
    };
    for (const OrthonormalRound round : {OrthonormalRound::kDivide, OrthonormalRound::kRepeat}) {
      for_each_block([&](const float* x, std::int64_t n, std::int64_t block) {
        loops_.column_products(x, n, columns, products + block * table);
      });
      for (std::int64_t block = 1; block < blocks; ++block) {
        for (std::int64_t element = 0; element < table; ++element) {
          products[element] += products[block * table + element];
        }
      }
      solve(round, columns, epsilon, products, factors, factors + table);
      for_each_block([&](float* x, std::int64_t n, std::int64_t /*block*/) {
        loops_.combine_columns(x, n, columns, factors);
      });
    }
  });
}

}  // namespace dstrain
