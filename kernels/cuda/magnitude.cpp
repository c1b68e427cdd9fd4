// Rows of a weight that have magnitudes of their own.
#include "kernels/cuda/device/magnitude.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/magnitude_operands.h"

namespace dstrain {

void CudaOps::magnitude_forward(ConstColumns x_NO,
                                ConstTensor magnitudes_O,
                                ConstTensor squares_O,
                                ConstTensor bias_O,
                                Columns y_NO,
                                Write write,
                                Stream& stream) {
  const MagnitudeRows rows = expect_magnitudes(x_NO, y_NO, magnitudes_O, squares_O);
  with_dtype(x_NO.dtype(), [&]<typename T>() {
    cuda::magnitude_forward<T>(
        on(stream), rows, {pointer<T>(magnitudes_O), pointer<float>(squares_O)},
        {.x = x_NO.begin<T>(), .bias = pointer<T>(bias_O), .y = y_NO.begin<T>()},
        write == Write::kAdd);
  });
}

void CudaOps::magnitude_backward(ConstColumns dy_NO,
                                 ConstColumns x_NO,
                                 ConstTensor magnitudes_O,
                                 ConstTensor squares_O,
                                 Columns dx_NO,
                                 Tensor d_magnitudes_O,
                                 Write write,
                                 Stream& stream) {
  const MagnitudeRows rows =
      expect_magnitudes_backward(dy_NO, x_NO, magnitudes_O, squares_O, dx_NO, d_magnitudes_O);
  with_dtype(x_NO.dtype(), [&]<typename T>() {
    const Launch to = on(stream);
    const std::int64_t chunks = cuda::magnitude_backward_chunks(rows);
    const Scratch partials(chunks * rows.width * size_of(DType::kF32), to.stream);
    cuda::magnitude_backward<T>(
        to, rows, {pointer<T>(magnitudes_O), pointer<float>(squares_O)},
        {.dy = dy_NO.begin<T>(), .x = x_NO.begin<T>(), .dx = dx_NO.begin<T>()},
        partials.template as<float>());
    if (!magnitudes_O.empty()) {
      cuda::add_partial_rows(to, partials.template as<float>(), chunks, rows.width, rows.width,
                             pointer<float>(d_magnitudes_O), write == Write::kAdd);
    }
  });
}

void CudaOps::add_row_products(ConstTensor a_OR, ConstTensor b_OR, Tensor sums_O, Stream& stream) {
  const auto [rows, width] = expect_row_products(a_OR, b_OR, sums_O);
  with_dtype(a_OR.dtype(), [&, rows = rows, width = width]<typename T>() {
    cuda::add_row_products<T>(on(stream), pointer<T>(a_OR), pointer<float>(b_OR),
                              pointer<float>(sums_O), rows, width);
  });
}

}  // namespace dstrain
