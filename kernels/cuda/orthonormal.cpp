// Orthonormal columns (kernels/math/orthonormal.h).
//
// N rows, R columns
#include "kernels/cuda/device/orthonormal.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/orthonormal_operands.h"

namespace dstrain {

void CudaOps::orthonormalize_columns(Tensor p_NR, float epsilon, Stream& stream) {
  const auto [rows, columns] = expect_columns(p_NR);
  if (p_NR.numel() == 0) {
    return;
  }
  const Launch to = on(stream);
  const std::int64_t table = columns * columns;
  const std::int64_t doubles = (cuda::row_blocks(rows) + 1) * table + columns;
  const Scratch scratch(doubles * size_of(DType::kF64), to.stream);
  auto* const factors = scratch.as<double>();
  double* const scales = factors + table;
  for (const OrthonormalRound round : {OrthonormalRound::kDivide, OrthonormalRound::kRepeat}) {
    cuda::orthonormalize(to, round, rows, columns, epsilon, pointer<float>(p_NR), scales + columns,
                         factors, scales);
  }
}

}  // namespace dstrain
