#include "engine/optim/orthogonalize.h"

#include <algorithm>
#include <utility>

#include "kernels/math/muon.h"

namespace dstrain {
namespace {

// Order of the buffers.
enum : std::size_t { kX, kNext, kGram, kPolynomial, kGramSums, kNorm };

/// The first elements of a buffer as a matrix.
Tensor matrix(const Site& site, BufferRef buffer, std::int64_t rows, std::int64_t columns) {
  return site.buffer(buffer).flat(0, rows * columns).view({rows, columns});
}

}  // namespace

std::vector<BufferRef> Orthogonalizer::declare(DType dtype, Blueprint& blueprint) {
  std::int64_t largest = 0;
  std::int64_t largest_gram = 0;
  for (const UnitDecl& unit : blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      if (param.hidden_matrix) {
        check(param.shape.rank() == 2, "{} of shape {} is not a matrix", param.name,
              param.shape.to_string());
        const std::int64_t k = std::min(param.shape[0], param.shape[1]);
        largest = std::max(largest, param.shape.numel());
        largest_gram = std::max(largest_gram, k * k);
      }
    }
  }
  const auto scratch = [&](const char* name, std::int64_t numel, DType of) {
    return blueprint.add_buffer({name, {numel}, of, Lifetime::kScratch});
  };
  return {scratch("muon_x", largest, dtype),
          scratch("muon_next_x", largest, dtype),
          scratch("muon_gram", largest_gram, dtype),
          scratch("muon_polynomial", largest_gram, dtype),
          scratch("muon_gram_sums", dtype == DType::kF32 ? 0 : largest_gram, DType::kF32),
          scratch("muon_norm", 1, DType::kF64)};
}

// With G = X·Xᵀ (R ≤ C) the new X is aX + (bG + cG²)X. A tall X takes G = Xᵀ·X from the right,
// aX + X(bG + cG²), which is the transposed iteration without transposing anything.
ConstTensor Orthogonalizer::orthogonalize(const Site& site, ConstTensor u_RC) const {
  Ops& ops = site.ops;
  Stream& stream = site.stream;
  const std::int64_t rows = u_RC.dim(0);
  const std::int64_t columns = u_RC.dim(1);
  const bool tall = rows > columns;
  const std::int64_t k = std::min(rows, columns);
  Tensor x_RC = matrix(site, buffers_.at(kX), rows, columns);
  Tensor next_RC = matrix(site, buffers_.at(kNext), rows, columns);
  const Tensor gram_KK = matrix(site, buffers_.at(kGram), k, k);
  const Tensor polynomial_KK = matrix(site, buffers_.at(kPolynomial), k, k);
  // Products with a transposed left side leave their sums in f32.
  const Tensor gram_sums_KK =
      gram_KK.dtype() == DType::kF32 ? gram_KK : matrix(site, buffers_.at(kGramSums), k, k);
  const Tensor norm = site.buffer(buffers_.at(kNorm));

  ops.sum_of_squares(u_RC, norm, Write::kOverwrite, stream);
  ops.divide_by_norm(u_RC, norm, NewtonSchulz::kEpsilon, x_RC, stream);
  for (int step = 0; step < NewtonSchulz::kSteps; ++step) {
    if (tall) {
      ops.linear_backward_weight(x_RC, x_RC, gram_sums_KK, Write::kOverwrite, stream);
      if (gram_KK.dtype() != DType::kF32) {
        ops.cast(gram_sums_KK, gram_KK, stream);
      }
    } else {
      ops.linear_forward(x_RC, x_RC, {}, gram_KK, stream);
    }
    ops.linear_forward(gram_KK, gram_KK, {}, polynomial_KK, stream);  // G is symmetric
    ops.add_scaled(polynomial_KK, NewtonSchulz::kC, polynomial_KK, Write::kOverwrite, stream);
    ops.add_scaled(gram_KK, NewtonSchulz::kB, polynomial_KK, Write::kAdd, stream);
    if (tall) {
      ops.linear_backward_input(x_RC, polynomial_KK, next_RC, stream);
    } else {
      ops.linear_backward_input(polynomial_KK, x_RC, next_RC, stream);
    }
    ops.add_scaled(x_RC, NewtonSchulz::kA, next_RC, Write::kAdd, stream);
    std::swap(x_RC, next_RC);
  }
  return x_RC;
}

}  // namespace dstrain
