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

void CudaOps::remember_trust_ratio(const LambStep& step,
                                   double beta,
                                   ConstTensor squares_2,
                                   Tensor coefficients_2,
                                   Stream& stream) {
  expect_coefficients(squares_2, coefficients_2);
  cuda::remember_trust_ratio(on(stream), step, beta, pointer<double>(squares_2),
                             pointer<double>(coefficients_2));
}

void CudaOps::one_bit_lamb_moments(const OneBitLambStep& step,
                                   const OptimizerTensors& tensors,
                                   Tensor sums_3,
                                   Stream& stream) {
  expect_one_bit_lamb(tensors, sums_3);
  const Launch to = on(stream);
  const std::int64_t n = tensors.master.numel();
  const Scratch partials(cuda::one_bit_lamb_partials(n) * size_of(DType::kF64), to.stream);
  cuda::one_bit_lamb_moments(to, step, range_of(tensors), n, partials.as<double>(),
                             pointer<double>(sums_3));
}

void CudaOps::one_bit_lamb_apply(const OneBitLambStep& step,
                                 const OptimizerTensors& tensors,
                                 ConstTensor sums_3,
                                 Tensor coefficients_2,
                                 Stream& stream) {
  expect_one_bit_lamb(tensors, sums_3);
  expect(coefficients_2, "one_bit_lamb: coefficients", DType::kF64, 2);
  cuda::one_bit_lamb_apply(on(stream), step, range_of(tensors), tensors.master.numel(),
                           pointer<double>(sums_3), pointer<double>(coefficients_2));
}

void CudaOps::muon_momentum(
    const MuonStep& step, ConstTensor gradient, Tensor buffer, Tensor update, Stream& stream) {
  const std::int64_t n = buffer.numel();
  expect(buffer, "muon: buffer", DType::kF32, n);
  cuda::muon_momentum(on(stream), step, floats(gradient, "muon: gradient", n),
                      pointer<float>(buffer), floats(update, "muon: update", n), n);
}

}  // namespace dstrain
