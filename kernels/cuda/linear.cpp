// Linear layers: products by cuBLASLt; bias gradients by our own kernel, which llm.c found faster
// than cuBLASLt's epilogue for them.
//
// N tokens, I inputs, O outputs
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/elementwise_operands.h"
#include "kernels/math/activation.h"
#include "kernels/matrix_product.h"

namespace dstrain {
namespace {

CudaProduct on_device(const MatrixProduct& product, bool is_routed = false) {
  const ProductForm form = form_of(product);
  return {.m = form.m,
          .n = form.n,
          .k = form.k,
          .a_transposed = form.a_transposed,
          .b_transposed = form.b_transposed,
          .adds = form.write == Write::kAdd,
          .in = product.a.dtype(),
          .out = product.c.dtype(),
          .a = product.a.data(),
          .b = product.b.data(),
          .bias = product.bias.data(),
          .c = product.c.data(),
          .is_routed = is_routed};
}

}  // namespace

void CudaOps::linear_forward(
    ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) {
  multiply_forward(x_NI, w_OI, bias_O, y_NO, /*is_routed=*/false, stream);
}

void CudaOps::multiply_forward(ConstTensor x_NI,
                               ConstTensor w_OI,
                               ConstTensor bias_O,
                               Tensor y_NO,
                               bool is_routed,
                               Stream& stream) {
  CudaProduct product = on_device(forward_product(x_NI, w_OI, bias_O, y_NO), is_routed);
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
  multiply(on_device(backward_input_product(dy_NO, w_OI, dx_NI)), stream);
}

void CudaOps::linear_activation_forward(ActivationKind kind,
                                        ConstTensor x_NI,
                                        ConstTensor w_OI,
                                        ConstTensor bias_O,
                                        Tensor pre_NO,
                                        Tensor y_NO,
                                        Stream& stream) {
  CudaProduct product = on_device(forward_product(x_NI, w_OI, bias_O, y_NO));
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
  CudaProduct product = on_device(backward_input_product(dy_NO, w_OI, d_pre_NI));
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
  multiply(on_device(backward_weight_product(dy_NO, x_NI, dw_OI, write)), stream);
}

void CudaOps::multiply(const CudaProduct& product, Stream& stream) {
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

void CudaOps::multiply_routed(const MatrixProduct& product, Stream& stream) {
  multiply(on_device(product, /*is_routed=*/true), stream);
}

void CudaOps::linear_backward_bias(ConstTensor dy_NO, Tensor dbias_O, Write write, Stream& stream) {
  const auto [tokens, outputs] = expect_rows_and_bias(dy_NO, dbias_O, DType::kF32);
  const Launch to = on(stream);
  const Scratch partials(cuda::column_chunks(tokens) * outputs * size_of(DType::kF32), to.stream);
  with_dtype(dy_NO.dtype(), [&, tokens = tokens, outputs = outputs]<typename T>() {
    cuda::column_sums(to, pointer<T>(dy_NO), tokens, outputs, partials.as<float>(),
                      pointer<float>(dbias_O), write == Write::kAdd);
  });
}

void CudaOps::add_bias(Tensor y_NO, ConstTensor bias_O, Stream& stream) {
  const auto [tokens, outputs] = expect_rows_and_bias(y_NO, bias_O, y_NO.dtype());
  with_dtype(y_NO.dtype(), [&, tokens = tokens, outputs = outputs]<typename T>() {
    cuda::add_to_rows(on(stream), pointer<T>(y_NO), pointer<T>(bias_O), tokens, outputs);
  });
}

}  // namespace dstrain
