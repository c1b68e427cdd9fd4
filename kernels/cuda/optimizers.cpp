// The optimizers: one pass over a flat range.
#include "kernels/cuda/device/optimizers.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/optimizer_operands.h"

namespace dstrain {

void CudaOps::adamw(const AdamwStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kBoth, "adamw");
  cuda::adamw(on(stream), step, range_of(tensors), tensors.master.numel());
}

void CudaOps::sgd(const SgdStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, step.momentum == 0.0 ? Moment::kNone : Moment::kFirst, "sgd");
  cuda::sgd(on(stream), step, range_of(tensors), tensors.master.numel());
}

void CudaOps::adagrad(const AdagradStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kSecond, "adagrad");
  cuda::adagrad(on(stream), step, range_of(tensors), tensors.master.numel());
}

void CudaOps::lion(const LionStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kFirst, "lion");
  cuda::lion(on(stream), step, range_of(tensors), tensors.master.numel());
}

void CudaOps::lamb_moments(const LambStep& step,
                           const OptimizerTensors& tensors,
                           Tensor squares_2,
                           Stream& stream) {
  expect_moments(tensors, Moment::kBoth, "lamb");
  expect_f32_state(tensors, "lamb");
  expect(squares_2, "lamb: squares", DType::kF64, 2);
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
  expect_moments(tensors, Moment::kBoth, "lamb");
  expect_f32_state(tensors, "lamb");
  expect(squares_2, "lamb: squares", DType::kF64, 2);
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
