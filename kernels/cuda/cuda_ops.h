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
#include "kernels/matrix_product.h"
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

#define DSTRAIN_OPERATION override
#include "kernels/ops_list.inc"
#undef DSTRAIN_OPERATION

 private:
  [[nodiscard]] Launch on(Stream& stream) const {
    return {handle_of(stream), multiprocessors_, faults_};
  }
  /// Computes a product with checked shapes, which may be empty.
  void multiply(const CudaProduct& product, Stream& stream);
  /// CudaProduct::is_routed.
  void multiply_routed(const MatrixProduct& product, Stream& stream);
  void multiply_forward(ConstTensor x_NI,
                        ConstTensor w_OI,
                        ConstTensor bias_O,
                        Tensor y_NO,
                        bool is_routed,
                        Stream& stream);
  /// Computes a product with an activation if cuBLASLt has it and it is faster, else calls
  /// `separately`.
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
