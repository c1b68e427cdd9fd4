// A head whose rows count with length one.
//
// N tokens, V vocabulary or a slice of it, C width
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/math/unit_row.h"
#include "kernels/unit_row_operands.h"

namespace dstrain {

void CpuOps::divide_columns(Tensor x_NV, ConstTensor squares_V, Stream& stream) {
  const auto [tokens, columns] = expect_divided_columns(x_NV, squares_V);
  stream.run([=, this, tokens = tokens, columns = columns] {
    const auto lease = scratch_.lease(columns * size_of(DType::kF32));
    float* const factors = lease.as<float>();
    const float* const squares = pointer<float>(squares_V);
    std::transform(squares, squares + columns, factors,
                   [](float of_row) { return inverse_length(of_row); });
    with_loops(loops_, x_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(threads_, tokens, [&](std::int64_t n, int /*worker*/) {
        T* const row = pointer<T>(x_NV) + n * columns;
        loops.scale_columns(row, factors, nullptr, row, false, columns);
      });
    });
  });
}

void CpuOps::project_rows(ConstTensor w_VC, ConstTensor squares_V, Tensor dw_VC, Stream& stream) {
  const auto [rows, width] = expect_projected_rows(w_VC, squares_V, dw_VC);
  stream.run([=, this, rows = rows, width = width] {
    constexpr std::int64_t kRows = 16;
    with_loops(loops_, w_VC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          loops.project_row(pointer<T>(w_VC) + row * width,
                            inverse_length(pointer<float>(squares_V)[row]),
                            pointer<float>(dw_VC) + row * width, width);
        }
      });
    });
  });
}

}  // namespace dstrain
