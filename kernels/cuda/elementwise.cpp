// Addition, conversion and zeros: one pass over flat ranges.
#include "kernels/cuda/device/elementwise.h"

#include <type_traits>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {

void CudaOps::add(ConstTensor a, ConstTensor b, Tensor y, Stream& stream) {
  const std::int64_t n = expect_add(a, b, y);
  with_dtype(a.dtype(), [&]<typename T>() {
    cuda::add(on(stream), pointer<T>(a), pointer<T>(b), pointer<T>(y), n);
  });
}

void CudaOps::cast(ConstTensor in, Tensor out, Stream& stream) {
  const std::int64_t n = in.numel();
  expect(out, "cast: out", out.dtype(), n);
  if (in.dtype() == out.dtype()) {
    if (n > 0) {
      cuda_check(cudaMemcpyAsync(out.data(), in.data(), static_cast<std::size_t>(in.bytes()),
                                 cudaMemcpyDeviceToDevice, handle_of(stream)),
                 "cudaMemcpyAsync on the device");
    }
    return;
  }
  expect_conversion(in, "cast: in", out, "cast: out");
  with_dtype(in.dtype(), [&]<typename From>() {
    with_dtype(out.dtype(), [&]<typename To>() {
      if constexpr (!std::is_same_v<From, To>) {
        cuda::convert(on(stream), pointer<From>(in), pointer<To>(out), n);
      }
    });
  });
}

void CudaOps::add_scaled(ConstTensor x, float scale, Tensor y, Write write, Stream& stream) {
  expect_conversion(x, "add_scaled: x", y, "add_scaled: y");
  with_dtype(x.dtype(), [&]<typename From>() {
    with_dtype(y.dtype(), [&]<typename To>() {
      cuda::add_scaled(on(stream), pointer<From>(x), {.known = scale}, pointer<To>(y),
                       write == Write::kAdd, x.numel());
    });
  });
}

void CudaOps::divide_by_norm(
    ConstTensor x, ConstTensor sum_of_squares, float epsilon, Tensor y, Stream& stream) {
  expect_conversion(x, "divide_by_norm: x", y, "divide_by_norm: y");
  expect(sum_of_squares, "divide_by_norm: the sum", DType::kF64, 1);
  with_dtype(x.dtype(), [&]<typename From>() {
    with_dtype(y.dtype(), [&]<typename To>() {
      cuda::add_scaled(on(stream), pointer<From>(x),
                       {.squares = pointer<double>(sum_of_squares), .epsilon = epsilon},
                       pointer<To>(y), false, x.numel());
    });
  });
}

void CudaOps::zero(Tensor tensor, Stream& stream) {
  if (tensor.bytes() > 0) {
    cuda_check(cudaMemsetAsync(tensor.data(), 0, static_cast<std::size_t>(tensor.bytes()),
                               handle_of(stream)),
               "cudaMemsetAsync");
  }
}

}  // namespace dstrain
