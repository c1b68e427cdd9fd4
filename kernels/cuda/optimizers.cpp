// The optimizers: one pass over a flat range.
#include "kernels/cuda/device/optimizers.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/optimizer_operands.h"

namespace dstrain {

void CudaOps::update(const ElementwiseStep& step, const OptimizerTensors& tensors, Stream& stream) {
  visit_update(step, tensors,
               [&](const char* operation, const auto& one, const OptimizerRange& range) {
                 cuda::update(on(stream), operation, one, range, tensors.master.numel());
               });
}

void CudaOps::lamb_moments(const LambStep& step,
                           const OptimizerTensors& tensors,
                           Tensor squares_2,
                           Stream& stream) {
  expect_lamb(tensors, squares_2);
  const Launch to = on(stream);
  const std::int64_t n = tensors.master.numel();
  const Scratch partials(cuda::lamb_partials(n) * size_of(DType::kF64), to.stream);
  cuda::lamb_moments(to, step, range_of(tensors), n, partials.as<double>(),
                     pointer<double>(squares_2));
}

void CudaOps::lamb_apply(const LambStep& step,
                         const OptimizerTensors& tensors,
                         ConstTensor squares_2,
                         Stream& stream) {
  expect_lamb(tensors, squares_2);
  cuda::lamb_apply(on(stream), step, range_of(tensors), tensors.master.numel(),
                   pointer<double>(squares_2));
}

void CudaOps::muon_momentum(
    const MuonStep& step, ConstTensor gradient, Tensor buffer, Tensor update, Stream& stream) {
  const std::int64_t n = buffer.numel();
  expect(buffer, "muon: buffer", DType::kF32, n);
  cuda::muon_momentum(on(stream), step, floats(gradient, "muon: gradient", n),
                      pointer<float>(buffer), floats(update, "muon: update", n), n);
}

}  // namespace dstrain
