// Products in 8 bits, by the tensor cores of GPUs from compute capability 8.9 on. They read both
// operands along the dimension that is summed over, which is why quantize() also transposes.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/quantize.h"
#include "kernels/cuda/typed.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMultiple = 16;  // bytes, and so elements, of what tensor cores read

void expect_f8(DType dtype, std::string_view name) {
  check(dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2, "{} is {}, expected f8e4m3 or f8e5m2",
        name, name_of(dtype));
}

void expect_at_multiple(const void* data, std::string_view name) {
  check(reinterpret_cast<std::uintptr_t>(data) % kMultiple == 0,
        "{} is at {}, expected a multiple of {}", name, data, kMultiple);
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
  const Tensor q = quantization.q_RC;
  const Tensor transposed = quantization.q_CR;
  expect(quantization.amax, "amax", DType::kF32, 1);
  expect_at_multiple(quantization.x_RC.data(), "x");
  DType dtype = DType::kF8E4M3;
  if (!q.empty() || !transposed.empty()) {
    dtype = q.empty() ? transposed.dtype() : q.dtype();
    expect_f8(dtype, "q");
    expect(quantization.scale, "the scale", DType::kF32, 1);
    expect_optional(q, "q", dtype, size.rows * size.width);
    expect_optional(transposed, "the transposed q", dtype, size.rows * size.width);
    expect_at_multiple(q.data(), "q");
    expect_at_multiple(transposed.data(), "the transposed q");
    check(transposed.empty() || (size.rows % kMultiple == 0 && size.width % kMultiple == 0),
          "a tensor of {} × {} is transposed in 8 bits, expected multiples of {}", size.rows,
          size.width, kMultiple);
  }
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
  check(a_MK.q.shape().rank() == 2 && b_NK.q.shape().rank() == 2 &&
            a_MK.q.dim(1) == b_NK.q.dim(1) && c_MN.shape() == Shape{a_MK.q.dim(0), b_NK.q.dim(0)},
        "a product of {} and {} (transposed) into {}", a_MK.q.shape().to_string(),
        b_NK.q.shape().to_string(), c_MN.shape().to_string());
  const std::int64_t m = a_MK.q.dim(0);
  const std::int64_t n = b_NK.q.dim(0);
  const std::int64_t k = a_MK.q.dim(1);
  for (const ScaledTensor& operand : {a_MK, b_NK}) {
    expect_f8(operand.q.dtype(), "an operand of a product in 8 bits");
    expect(operand.scale, "its scale", DType::kF32, 1);
  }
  check(a_MK.q.dtype() == DType::kF8E4M3 || b_NK.q.dtype() == DType::kF8E4M3,
        "both operands of a product in 8 bits are f8e5m2, which no tensor core multiplies");
  check(c_MN.dtype() == DType::kBF16 || c_MN.dtype() == DType::kF32,
        "a product in 8 bits into {}, expected bf16 or f32", name_of(c_MN.dtype()));
  check(write == Write::kOverwrite || c_MN.dtype() == DType::kF32,
        "a product in 8 bits is added to {}, expected f32", name_of(c_MN.dtype()));
  check(m % kMultiple == 0 && n % kMultiple == 0 && k % kMultiple == 0,
        "a product in 8 bits of {} × {} × {}, expected multiples of {}", m, n, k, kMultiple);
  expect_optional(bias_N, "bias", DType::kBF16, n);
  check(bias_N.empty() || c_MN.dtype() == DType::kBF16, "a product in 8 bits with bias into {}",
        name_of(c_MN.dtype()));
  multiply({.m = m,
            .n = n,
            .k = k,
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
