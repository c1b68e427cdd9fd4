// CudaOps: every operation of kernels/ops.h on a GPU. A method checks dtypes and shapes and
// enqueues kernels (device/) or a product of cuBLASLt (matmul.h); the file that holds it is named
// after its subject, as on the CPU.
#pragma once

#include <functional>

#include "kernels/backend.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/matmul.h"
#include "kernels/ops.h"

namespace dstrain {

class CudaOps final : public Ops {
 public:
  /// The device must outlive it.
  CudaOps(const CudaDevice& device, const CudaOptions& options)
      : multiprocessors_(device.multiprocessors()),
        faults_(device.faults()),
        matmul_(device.index(),
                {.tf32 = options.tf32, .algorithms_file = options.matmul_algorithms_file}),
        attention_(device.index(),
                   {.wanted = options.attention,
                    .file = options.matmul_algorithms_file,
                    .tell = options.tell}) {}

  void linear_forward(
      ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) override;
  void linear_backward_input(ConstTensor dy_NO,
                             ConstTensor w_OI,
                             Tensor dx_NI,
                             Stream& stream) override;
  void linear_activation_forward(ActivationKind kind,
                                 ConstTensor x_NI,
                                 ConstTensor w_OI,
                                 ConstTensor bias_O,
                                 Tensor pre_NO,
                                 Tensor y_NO,
                                 Stream& stream) override;
  void linear_activation_backward(ActivationKind kind,
                                  ConstTensor dy_NO,
                                  ConstTensor w_OI,
                                  ConstTensor pre_NI,
                                  Tensor d_pre_NI,
                                  Stream& stream) override;
  void linear_backward_weight(
      ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write, Stream& stream) override;
  void linear_backward_bias(ConstTensor dy_NO,
                            Tensor dbias_O,
                            Write write,
                            Stream& stream) override;
  void add_bias(Tensor y_NO, ConstTensor bias_O, Stream& stream) override;

  void quantize(const Quantization& quantization, Stream& stream) override;
  void scaled_product(const ScaledTensor& a_MK,
                      const ScaledTensor& b_NK,
                      ConstTensor bias_N,
                      Tensor c_MN,
                      Write write,
                      Stream& stream) override;

  void embedding_forward(ConstTensor tokens_N,
                         ConstTensor table_VC,
                         const VocabSlice& slice,
                         ConstTensor position_PC,
                         std::int64_t sequence,
                         Tensor x_NC,
                         Stream& stream) override;
  void embedding_backward(ConstTensor tokens_N,
                          ConstTensor dx_NC,
                          const VocabSlice& slice,
                          std::int64_t sequence,
                          Tensor dtable_VC,
                          Tensor dposition_PC,
                          Write table_write,
                          Write position_write,
                          Stream& stream) override;

  void norm_forward(const NormForward& norm, Stream& stream) override;
  void norm_backward(const NormBackward& norm, Stream& stream) override;
  void add(ConstTensor a, ConstTensor b, Tensor y, Stream& stream) override;

  void rope(const AttentionShape& shape,
            Tensor qkv,
            ConstTensor cos_TD,
            ConstTensor sin_TD,
            Pass pass,
            Stream& stream) override;
  void attention_forward(const AttentionShape& shape,
                         ConstTensor qkv,
                         Tensor out,
                         Tensor logsumexp_BHT,
                         Stream& stream) override;
  void attention_cached(const AttentionShape& shape,
                        std::int64_t first_position,
                        std::int64_t window,
                        ConstTensor qkv,
                        Tensor cache,
                        Tensor out,
                        Stream& stream) override;
  void attention_backward(const AttentionShape& shape,
                          ConstTensor qkv,
                          ConstTensor out,
                          ConstTensor logsumexp_BHT,
                          ConstTensor dout,
                          Tensor delta_BHT,
                          Tensor dqkv,
                          Stream& stream) override;

  void activation_forward(ActivationKind kind,
                          ConstTensor x_NF,
                          Tensor y_NF,
                          Stream& stream) override;
  void activation_backward(ActivationKind kind,
                           ConstTensor x_NF,
                           ConstTensor dy_NF,
                           Tensor dx_NF,
                           Stream& stream) override;
  void gated_activation_forward(ActivationKind kind,
                                ConstTensor gate_up,
                                Tensor y_NF,
                                Stream& stream) override;
  void gated_activation_backward(ActivationKind kind,
                                 ConstTensor gate_up,
                                 ConstTensor dy_NF,
                                 Tensor d_gate_up,
                                 Stream& stream) override;

  void cross_entropy_forward(ConstTensor logits_NV,
                             ConstTensor targets_N,
                             std::int64_t vocab_size,
                             Tensor losses_N,
                             Stream& stream) override;
  void cross_entropy_forward_backward(Tensor logits_NV,
                                      ConstTensor targets_N,
                                      std::int64_t vocab_size,
                                      float gradient_scale,
                                      Tensor losses_N,
                                      Stream& stream) override;
  void cross_entropy_partial(ConstTensor logits_NV,
                             ConstTensor targets_N,
                             const VocabSlice& slice,
                             Tensor stats_N3,
                             Stream& stream) override;
  void cross_entropy_combine(ConstTensor stats_RN3,
                             Tensor logsumexp_N,
                             Tensor losses_N,
                             Stream& stream) override;
  void cross_entropy_gradient(Tensor logits_NV,
                              ConstTensor targets_N,
                              const VocabSlice& slice,
                              ConstTensor logsumexp_N,
                              float gradient_scale,
                              Stream& stream) override;

  void sum(ConstTensor values, Tensor total, Write write, Stream& stream) override;
  void sum_of_squares(ConstTensor values, Tensor total, Write write, Stream& stream) override;
  void bit_sums(ConstTensor values, DType as, Tensor sums_4, Stream& stream) override;
  void cast(ConstTensor in, Tensor out, Stream& stream) override;
  void add_scaled(ConstTensor x, float scale, Tensor y, Write write, Stream& stream) override;
  void zero(Tensor tensor, Stream& stream) override;

  void adamw(const AdamwStep& step, const OptimizerTensors& tensors, Stream& stream) override;
  void sgd(const SgdStep& step, const OptimizerTensors& tensors, Stream& stream) override;
  void adagrad(const AdagradStep& step, const OptimizerTensors& tensors, Stream& stream) override;
  void lion(const LionStep& step, const OptimizerTensors& tensors, Stream& stream) override;
  void lamb_moments(const LambStep& step,
                    const OptimizerTensors& tensors,
                    Tensor squares_2,
                    Stream& stream) override;
  void lamb_apply(const LambStep& step,
                  const OptimizerTensors& tensors,
                  ConstTensor squares_2,
                  Stream& stream) override;
  void muon_momentum(const MuonStep& step,
                     ConstTensor gradient,
                     Tensor buffer,
                     Tensor update,
                     Stream& stream) override;
  void divide_by_norm(
      ConstTensor x, ConstTensor sum_of_squares, float epsilon, Tensor y, Stream& stream) override;

 private:
  [[nodiscard]] Launch on(Stream& stream) const {
    return {handle_of(stream), multiprocessors_, faults_};
  }
  /// y = x · wᵀ + bias, its shapes checked.
  [[nodiscard]] static CudaProduct forward_product(ConstTensor x_NI,
                                                   ConstTensor w_OI,
                                                   ConstTensor bias_O,
                                                   Tensor y_NO);
  /// dx = dy · w, likewise.
  [[nodiscard]] static CudaProduct backward_product(ConstTensor dy_NO,
                                                    ConstTensor w_OI,
                                                    Tensor dx_NI);
  /// A product with checked shapes; empty ones too.
  void multiply(const CudaProduct& product, Stream& stream);
  /// A product with an activation if cuBLASLt has it and it is the faster, else `separately`.
  void multiply_activated(ActivationKind kind,
                          const CudaProduct& product,
                          const std::function<void()>& separately,
                          Stream& stream);

  int multiprocessors_;
  FaultPointers faults_;
  CudaMatmul matmul_;
  AttentionChoice attention_;
};

}  // namespace dstrain
