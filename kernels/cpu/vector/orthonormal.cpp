// Products of columns, and columns made of others, both in f64 (kernels/math/orthonormal.h). Rows
// are short, R ≤ 64: the compiler makes vectors of the loops over columns.
//
// N rows, R columns
#include "kernels/math/orthonormal.h"

#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

void column_products(const float* x_NR, std::int64_t n, std::int64_t r, double* products_RR) {
  for (std::int64_t element = 0; element < r * r; ++element) {
    products_RR[element] = 0.0;
  }
  for (const float* x = x_NR; x != x_NR + n * r; x += r) {
    for (std::int64_t i = 0; i < r; ++i) {
      const auto factor = static_cast<double>(x[i]);
      double* const products = products_RR + i * r;
      for (std::int64_t j = i; j < r; ++j) {
        products[j] += factor * static_cast<double>(x[j]);
      }
    }
  }
}

void combine_columns(float* x_NR, std::int64_t n, std::int64_t r, const double* factors_RR) {
  double sums[kMostOrthonormalColumns];
  for (float* x = x_NR; x != x_NR + n * r; x += r) {
    for (std::int64_t j = 0; j < r; ++j) {
      sums[j] = 0.0;
    }
    for (std::int64_t i = 0; i < r; ++i) {
      const auto value = static_cast<double>(x[i]);
      for (std::int64_t j = i; j < r; ++j) {
        sums[j] += value * factors_RR[i * r + j];
      }
    }
    for (std::int64_t j = 0; j < r; ++j) {
      x[j] = static_cast<float>(sums[j]);
    }
  }
}

}  // namespace

void fill_orthonormal(VectorLoops* loops) {
  loops->column_products = column_products;
  loops->combine_columns = combine_columns;
}

}  // namespace dstrain::DSTRAIN_ISA
