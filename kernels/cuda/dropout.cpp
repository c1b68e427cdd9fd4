// Dropout of rows.
#include "kernels/dropout.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dropout.h"
#include "kernels/cuda/typed.h"

namespace dstrain {

void CudaOps::dropout(const DropoutRows& rows, ConstTensor x_NC, Tensor y_NC, Stream& stream) {
  const auto [num_rows, width] = expect_dropout(rows, x_NC, y_NC);
  with_dtype(x_NC.dtype(), [&, num_rows = num_rows, width = width]<typename T>() {
    cuda::dropout<T>(on(stream),
                     {.dropout = {.key = rows.dropout.key,
                                  .probability = rows.dropout.probability,
                                  .first_sample = pointer<std::int32_t>(rows.dropout.first_sample)},
                      .rows = num_rows,
                      .width = width,
                      .sequence = rows.sequence,
                      .first_row = rows.first_row,
                      .first_position = rows.first_position,
                      .x = pointer<T>(x_NC),
                      .y = pointer<T>(y_NC)});
  });
}

}  // namespace dstrain
