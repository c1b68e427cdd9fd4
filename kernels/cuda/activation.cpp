// Activations, alone or with a gate.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {

void CudaOps::activation_forward(ActivationKind kind,
                                 ConstTensor x_NF,
                                 Tensor y_NF,
                                 Stream& stream) {
  const std::int64_t n = expect_activation(x_NF, y_NF);
  with_dtype(x_NF.dtype(), [&]<typename T>() {
    cuda::activation_forward(on(stream), kind, pointer<T>(x_NF), pointer<T>(y_NF), n);
  });
}

void CudaOps::activation_backward(
    ActivationKind kind, ConstTensor x_NF, ConstTensor dy_NF, Tensor dx_NF, Stream& stream) {
  const std::int64_t n = expect_activation_backward(x_NF, dy_NF, dx_NF);
  with_dtype(x_NF.dtype(), [&]<typename T>() {
    cuda::activation_backward(on(stream), kind, pointer<T>(x_NF), pointer<T>(dy_NF),
                              pointer<T>(dx_NF), n);
  });
}

void CudaOps::gated_activation_forward(GatedActivation activation,
                                       ConstTensor gate_up,
                                       Tensor y_NF,
                                       Stream& stream) {
  const auto [tokens, width] = expect_gated(gate_up, gate_up, y_NF);
  with_dtype(y_NF.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::gated_forward(on(stream), activation, pointer<T>(gate_up), pointer<T>(y_NF), tokens,
                        width);
  });
}

void CudaOps::gated_activation_backward(GatedActivation activation,
                                        ConstTensor gate_up,
                                        ConstTensor dy_NF,
                                        Tensor d_gate_up,
                                        Stream& stream) {
  const auto [tokens, width] = expect_gated(gate_up, d_gate_up, dy_NF);
  with_dtype(dy_NF.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::gated_backward(on(stream), activation, pointer<T>(gate_up), pointer<T>(dy_NF),
                         pointer<T>(d_gate_up), tokens, width);
  });
}

}  // namespace dstrain
