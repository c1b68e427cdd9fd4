// A head whose rows count with length one.
//
// N tokens, V vocabulary or a slice of it, C width
#include "kernels/cuda/device/unit_rows.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"
#include "kernels/unit_row_operands.h"

namespace dstrain {

void CudaOps::divide_columns(Tensor x_NV, ConstTensor squares_V, Stream& stream) {
  const auto [tokens, columns] = expect_divided_columns(x_NV, squares_V);
  with_dtype(x_NV.dtype(), [&, tokens = tokens, columns = columns]<typename T>() {
    cuda::divide_columns(on(stream), pointer<T>(x_NV), pointer<float>(squares_V), tokens, columns);
  });
}

void CudaOps::project_rows(ConstTensor w_VC, ConstTensor squares_V, Tensor dw_VC, Stream& stream) {
  const auto [rows, width] = expect_projected_rows(w_VC, squares_V, dw_VC);
  with_dtype(w_VC.dtype(), [&, rows = rows, width = width]<typename T>() {
    cuda::project_rows(on(stream), pointer<T>(w_VC), pointer<float>(squares_V),
                       pointer<float>(dw_VC), rows, width);
  });
}

}  // namespace dstrain
