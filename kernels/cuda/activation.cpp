// Activations, alone or with a gate.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/typed.h"

namespace dstrain {

void CudaOps::activation_forward(ActivationKind kind,
                                 ConstTensor x_NF,
                                 Tensor y_NF,
                                 Stream& stream) {
  const std::int64_t n = x_NF.numel();
  expect(y_NF, "activation: y", x_NF.dtype(), n);
  with_dtype(x_NF.dtype(), [&]<typename T>() {
    cuda::activation_forward(on(stream), kind, pointer<T>(x_NF), pointer<T>(y_NF), n);
  });
}

void CudaOps::activation_backward(
    ActivationKind kind, ConstTensor x_NF, ConstTensor dy_NF, Tensor dx_NF, Stream& stream) {
  const std::int64_t n = x_NF.numel();
  expect(dy_NF, "activation: dy", x_NF.dtype(), n);
  expect(dx_NF, "activation: dx", x_NF.dtype(), n);
  with_dtype(x_NF.dtype(), [&]<typename T>() {
    cuda::activation_backward(on(stream), kind, pointer<T>(x_NF), pointer<T>(dy_NF),
                              pointer<T>(dx_NF), n);
  });
}

void CudaOps::gated_activation_forward(ActivationKind kind,
                                       ConstTensor gate_up,
                                       Tensor y_NF,
                                       Stream& stream) {
  const auto [tokens, width] = as_matrix(y_NF);
  expect(gate_up, "gated activation: gate_up", y_NF.dtype(), tokens * 2 * width);
  with_dtype(y_NF.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::gated_forward(on(stream), kind, pointer<T>(gate_up), pointer<T>(y_NF), tokens, width);
  });
}

void CudaOps::gated_activation_backward(
    ActivationKind kind, ConstTensor gate_up, ConstTensor dy_NF, Tensor d_gate_up, Stream& stream) {
  const auto [tokens, width] = as_matrix(dy_NF);
  expect(gate_up, "gated activation: gate_up", dy_NF.dtype(), tokens * 2 * width);
  expect(d_gate_up, "gated activation: d_gate_up", dy_NF.dtype(), tokens * 2 * width);
  with_dtype(dy_NF.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::gated_backward(on(stream), kind, pointer<T>(gate_up), pointer<T>(dy_NF),
                         pointer<T>(d_gate_up), tokens, width);
  });
}

}  // namespace dstrain
