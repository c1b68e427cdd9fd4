// Dropout of rows, and noise.
#include "kernels/dropout.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dropout.h"
#include "kernels/cuda/typed.h"

namespace dstrain {

namespace {

template <typename T>
cuda::DropoutRows<T> rows_of(const DropoutRows& rows,
                             const Matrix& size,
                             const ConstTensor& x_NC,
                             const Tensor& y_NC) {
  return {.dropout = {.key = rows.dropout.key,
                      .probability = rows.dropout.probability,
                      .first_sample = pointer<std::int32_t>(rows.dropout.first_sample)},
          .rows = size.rows,
          .width = size.width,
          .sequence = rows.sequence,
          .first_row = rows.first_row,
          .first_position = rows.first_position,
          .first_column = rows.first_column,
          .x = pointer<T>(x_NC),
          .y = pointer<T>(y_NC)};
}

}  // namespace

void CudaOps::dropout(const DropoutRows& rows, ConstTensor x_NC, Tensor y_NC, Stream& stream) {
  const Matrix size = expect_dropout(rows, x_NC, y_NC);
  with_dtype(x_NC.dtype(), [&]<typename T>() {
    cuda::dropout<T>(on(stream), rows_of<T>(rows, size, x_NC, y_NC));
  });
}

void CudaOps::add_noise(const NoiseRows& rows, Tensor x_NC, Stream& stream) {
  const Matrix size = expect_noise(rows, x_NC);
  with_dtype(x_NC.dtype(), [&]<typename T>() {
    cuda::add_noise<T>(on(stream), rows_of<T>(rows.place, size, x_NC, x_NC), rows.magnitude);
  });
}

}  // namespace dstrain
