// Linear layers: products by cuBLASLt; bias gradients by our own kernel, which llm.c found faster
// than cuBLASLt's epilogue for them.
//
// N tokens, I inputs, O outputs
#include <string_view>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

void expect_matrix(const ConstTensor& tensor,
                   std::string_view name,
                   std::int64_t rows,
                   std::int64_t columns) {
  check(tensor.shape() == Shape{rows, columns}, "{} is {}, expected [{}, {}]", name,
        tensor.shape().to_string(), rows, columns);
}

void expect_operands(const ConstTensor& left, const ConstTensor& right) {
  check(left.shape().rank() == 2 && right.shape().rank() == 2,
        "a matrix product of tensors of shapes {} and {}", left.shape().to_string(),
        right.shape().to_string());
  expect_compute_dtype(left.dtype(), "a matrix");
  check(left.dtype() == right.dtype(), "a matrix product of {} and {}, expected both the same",
        name_of(left.dtype()), name_of(right.dtype()));
}

}  // namespace

CudaProduct CudaOps::forward_product(ConstTensor x_NI,
                                     ConstTensor w_OI,
                                     ConstTensor bias_O,
                                     Tensor y_NO) {
  expect_operands(x_NI, w_OI);
  const std::int64_t n = x_NI.dim(0);
  const std::int64_t i = x_NI.dim(1);
  const std::int64_t o = w_OI.dim(0);
  expect_matrix(w_OI, "the weight", o, i);
  expect_matrix(y_NO, "the output", n, o);
  expect_optional(bias_O, "bias", x_NI.dtype(), o);
  return {.m = n,
          .n = o,
          .k = i,
          .a_transposed = false,
          .b_transposed = true,
          .adds = false,
          .in = x_NI.dtype(),
          .out = y_NO.dtype(),
          .a = x_NI.data(),
          .b = w_OI.data(),
          .bias = bias_O.data(),
          .c = y_NO.data()};
}

CudaProduct CudaOps::backward_product(ConstTensor dy_NO, ConstTensor w_OI, Tensor dx_NI) {
  expect_operands(dy_NO, w_OI);
  const std::int64_t n = dy_NO.dim(0);
  const std::int64_t o = dy_NO.dim(1);
  const std::int64_t i = w_OI.dim(1);
  expect_matrix(w_OI, "the weight", o, i);
  expect_matrix(dx_NI, "the input's gradient", n, i);
  return {.m = n,
          .n = i,
          .k = o,
          .a_transposed = false,
          .b_transposed = false,
          .adds = false,
          .in = dy_NO.dtype(),
          .out = dx_NI.dtype(),
          .a = dy_NO.data(),
          .b = w_OI.data(),
          .bias = nullptr,
          .c = dx_NI.data()};
}

void CudaOps::linear_forward(
    ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) {
  CudaProduct product = forward_product(x_NI, w_OI, bias_O, y_NO);
  if (!can_add_bias(product)) {
    product.bias = nullptr;  // added below
  }
  multiply(product, stream);
  if (!bias_O.empty() && (product.bias == nullptr || product.k == 0)) {
    with_dtype(y_NO.dtype(), [&]<typename Y>() {
      with_dtype(bias_O.dtype(), [&]<typename T>() {
        if constexpr (std::is_same_v<Y, T> || std::is_same_v<Y, float>) {
          cuda::add_to_rows(on(stream), pointer<Y>(y_NO), pointer<T>(bias_O), product.m, product.n);
        }
      });
    });
  }
}

void CudaOps::linear_backward_input(ConstTensor dy_NO,
                                    ConstTensor w_OI,
                                    Tensor dx_NI,
                                    Stream& stream) {
  multiply(backward_product(dy_NO, w_OI, dx_NI), stream);
}

void CudaOps::linear_activation_forward(ActivationKind kind,
                                        ConstTensor x_NI,
                                        ConstTensor w_OI,
                                        ConstTensor bias_O,
                                        Tensor pre_NO,
                                        Tensor y_NO,
                                        Stream& stream) {
  CudaProduct product = forward_product(x_NI, w_OI, bias_O, y_NO);
  expect(pre_NO, "pre", y_NO.dtype(), y_NO.numel());
  product.activation = ProductActivation::kGelu;
  product.aux = pre_NO.data();
  multiply_activated(
      kind, product,
      [&] {
        linear_forward(x_NI, w_OI, bias_O, pre_NO, stream);
        activation_forward(kind, pre_NO, y_NO, stream);
      },
      stream);
}

void CudaOps::linear_activation_backward(ActivationKind kind,
                                         ConstTensor dy_NO,
                                         ConstTensor w_OI,
                                         ConstTensor pre_NI,
                                         Tensor d_pre_NI,
                                         Stream& stream) {
  CudaProduct product = backward_product(dy_NO, w_OI, d_pre_NI);
  expect(pre_NI, "pre", d_pre_NI.dtype(), d_pre_NI.numel());
  product.activation = ProductActivation::kGeluBackward;
  product.aux = pre_NI.data();
  multiply_activated(
      kind, product,
      [&] {
        linear_backward_input(dy_NO, w_OI, d_pre_NI, stream);
        activation_backward(kind, pre_NI, d_pre_NI, d_pre_NI, stream);
      },
      stream);
}

void CudaOps::multiply_activated(ActivationKind kind,
                                 const CudaProduct& product,
                                 const std::function<void()>& separately,
                                 Stream& stream) {
  const bool is_empty = product.m == 0 || product.n == 0 || product.k == 0;
  if (kind == ActivationKind::kGeluTanh && !is_empty && can_be_activated(product)) {
    matmul_.run_activated(product, separately, handle_of(stream));
  } else {
    separately();
  }
}

void CudaOps::linear_backward_weight(
    ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write, Stream& stream) {
  expect_operands(dy_NO, x_NI);
  const std::int64_t n = dy_NO.dim(0);
  const std::int64_t o = dy_NO.dim(1);
  const std::int64_t i = x_NI.dim(1);
  expect_matrix(x_NI, "the input", n, i);
  expect_matrix(dw_OI, "the weight's gradient", o, i);
  check(dw_OI.dtype() == DType::kF32, "the weight's gradient is {}, expected f32",
        name_of(dw_OI.dtype()));
  multiply({.m = o,
            .n = i,
            .k = n,
            .a_transposed = true,
            .b_transposed = false,
            .adds = write == Write::kAdd,
            .in = dy_NO.dtype(),
            .out = DType::kF32,
            .a = dy_NO.data(),
            .b = x_NI.data(),
            .bias = nullptr,
            .c = dw_OI.data()},
           stream);
}

void CudaOps::multiply(const CudaProduct& product, Stream& stream) {
  check(product.a_scale != nullptr || product.out == DType::kF32 || product.out == product.in,
        "a product of {} matrices into {}", name_of(product.in), name_of(product.out));
  if (product.m == 0 || product.n == 0) {
    return;
  }
  const cudaStream_t handle = handle_of(stream);
  if (product.k > 0) {
    matmul_.run(product, handle);
  } else if (!product.adds) {
    const std::int64_t bytes = product.m * product.n * size_of(product.out);
    cuda_check(cudaMemsetAsync(product.c, 0, static_cast<std::size_t>(bytes), handle),
               "cudaMemsetAsync");
  }
}

void CudaOps::linear_backward_bias(ConstTensor dy_NO, Tensor dbias_O, Write write, Stream& stream) {
  const auto [tokens, outputs] = as_matrix(dy_NO);
  expect(dbias_O, "dbias", DType::kF32, outputs);
  const Launch to = on(stream);
  const Scratch partials(cuda::column_chunks(tokens) * outputs * size_of(DType::kF32), to.stream);
  with_dtype(dy_NO.dtype(), [&, tokens = tokens, outputs = outputs]<typename T>() {
    cuda::column_sums(to, pointer<T>(dy_NO), tokens, outputs, partials.as<float>(),
                      pointer<float>(dbias_O), write == Write::kAdd);
  });
}

void CudaOps::add_bias(Tensor y_NO, ConstTensor bias_O, Stream& stream) {
  const auto [tokens, outputs] = as_matrix(y_NO);
  expect(bias_O, "bias", y_NO.dtype(), outputs);
  with_dtype(y_NO.dtype(), [&, tokens = tokens, outputs = outputs]<typename T>() {
    cuda::add_to_rows(on(stream), pointer<T>(y_NO), pointer<T>(bias_O), tokens, outputs);
  });
}

}  // namespace dstrain
