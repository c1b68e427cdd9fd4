// RMS norms of groups of columns.
#include "kernels/cuda/device/group_norm.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/group_norm_operands.h"

namespace dstrain {

void CudaOps::group_squares(ConstColumns x,
                            std::int64_t group_width,
                            Tensor squares_NG,
                            Stream& stream) {
  with_dtype(x.dtype(), [&]<typename T>() {
    cuda::group_squares<T>(on(stream), squares_rows<T>(x, group_width, squares_NG),
                           pointer<float>(squares_NG));
  });
}

void CudaOps::group_products(ConstColumns dy,
                             ConstColumns x,
                             ConstTensor weight_W,
                             float weight_offset,
                             Tensor products_NG,
                             Stream& stream) {
  with_dtype(x.dtype(), [&]<typename T>() {
    cuda::group_products<T>(on(stream),
                            products_rows<T>(dy, x, weight_W, weight_offset, products_NG),
                            pointer<float>(products_NG));
  });
}

void CudaOps::group_norm_forward(const GroupNormForward& norm, Stream& stream) {
  with_dtype(norm.x.dtype(),
             [&]<typename T>() { cuda::group_norm_forward<T>(on(stream), forward_rows<T>(norm)); });
}

void CudaOps::group_norm_backward(const GroupNormBackward& norm, Stream& stream) {
  with_dtype(norm.x.dtype(), [&]<typename T>() {
    const GroupNormRows<T> rows = backward_rows<T>(norm);
    check(rows.width <= cuda::kWidestGroup, "group norm: groups of {}, a GPU takes up to {}",
          rows.width, cuda::kWidestGroup);
    const Launch to = on(stream);
    const std::int64_t blocks = cuda::group_norm_backward_blocks<T>(to, rows);
    const Scratch partials(blocks * rows.width * size_of(DType::kF32), to.stream);
    cuda::group_norm_backward<T>(to, rows, partials.template as<float>());
    cuda::add_partial_rows(to, partials.template as<float>(), blocks, rows.width, rows.width,
                           pointer<float>(norm.dweight_W), norm.weight_write == Write::kAdd);
  });
}

}  // namespace dstrain
