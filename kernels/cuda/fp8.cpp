// Products in 8 bits, by the tensor cores of GPUs from compute capability 8.9 on. They read both
// operands along the dimension that is summed over, which is why quantize() also transposes.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/quantize.h"
#include "kernels/cuda/typed.h"
#include "kernels/fp8_operands.h"

namespace dstrain {
namespace {

void expect_at_multiple(const void* data, std::string_view name) {
  check(reinterpret_cast<std::uintptr_t>(data) % kF8Multiple == 0,
        "{} is at {}, expected a multiple of {}", name, data, kF8Multiple);
}

template <typename T, typename F8>
void run_quantize(const Launch& to, const Quantization& quantization, const Matrix& size) {
  cuda::quantize<T, F8>(to, {.x = pointer<T>(quantization.x_RC),
                             .scale = pointer<float>(quantization.scale),
                             .q = pointer<F8>(quantization.q_RC),
                             .transposed = pointer<F8>(quantization.q_CR),
                             .amax = pointer<float>(quantization.amax),
                             .rows = size.rows,
                             .columns = size.width});
}

}  // namespace

void CudaOps::quantize(const Quantization& quantization, Stream& stream) {
  const Matrix size = as_matrix(quantization.x_RC);
  const DType dtype = expect_quantization(quantization);
  expect_at_multiple(quantization.x_RC.data(), "x");
  expect_at_multiple(quantization.q_RC.data(), "q");
  expect_at_multiple(quantization.q_CR.data(), "the transposed q");
  with_dtype(quantization.x_RC.dtype(), [&]<typename T>() {
    if (dtype == DType::kF8E4M3) {
      run_quantize<T, F8E4M3>(on(stream), quantization, size);
    } else {
      run_quantize<T, F8E5M2>(on(stream), quantization, size);
    }
  });
}

void CudaOps::scaled_product(const ScaledTensor& a_MK,
                             const ScaledTensor& b_NK,
                             ConstTensor bias_N,
                             Tensor c_MN,
                             Write write,
                             Stream& stream) {
  expect_scaled_product(a_MK, b_NK, bias_N, c_MN, write);
  // cuBLASLt 13.1 proposes algorithms whatever the address of a scale, and then refuses to run
  // them.
  expect_at_multiple(a_MK.scale.data(), "the scale of a product's first operand");
  expect_at_multiple(b_NK.scale.data(), "the scale of a product's second operand");
  multiply({.m = a_MK.q.dim(0),
            .n = b_NK.q.dim(0),
            .k = a_MK.q.dim(1),
            .a_transposed = false,
            .b_transposed = true,
            .adds = write == Write::kAdd,
            .in = a_MK.q.dtype(),
            .out = c_MN.dtype(),
            .a = a_MK.q.data(),
            .b = b_NK.q.data(),
            .bias = bias_N.data(),
            .c = c_MN.data(),
            .a_scale = pointer<float>(a_MK.scale),
            .b_scale = pointer<float>(b_NK.scale),
            .b_in = b_NK.q.dtype()},
           stream);
}

}  // namespace dstrain
