// Softmax cross-entropy. The whole vocabulary and a slice of it go through the same kernels, so
// that one slice gives the same bits as no slices. A target outside the vocabulary leaves the
// outputs untouched, and the next wait throws (fault_box.h).
//
// N tokens, V vocabulary or a slice of it, R ranks that hold the slices
#include "kernels/cuda/device/softmax_xent.h"

#include "kernels/cross_entropy_operands.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/device/embedding.h"
#include "kernels/cuda/typed.h"

namespace dstrain {
namespace {

/// Checks the operands, and has the targets checked on the GPU. T may be const for operands that
/// are only read.
template <typename T, typename AnyTensor>
cuda::LogitRows<T> rows_of(const Launch& to,
                           const AnyTensor& logits_NV,
                           const ConstTensor& targets_N,
                           const VocabSlice& slice) {
  const auto [tokens, columns, real] = expect_logits(logits_NV, targets_N, slice);
  const auto* const targets = pointer<std::int32_t>(targets_N);
  cuda::check_ids(to, FaultSource::kTargets, targets, tokens, slice.vocab_size);
  return {.logits = static_cast<T*>(const_cast<void*>(static_cast<const void*>(logits_NV.data()))),
          .tokens = tokens,
          .columns = columns,
          .real = real,
          .first = slice.first,
          .targets = targets};
}

}  // namespace

void CudaOps::soft_cap(Tensor logits_NV, float cap, Stream& stream) {
  expect_soft_cap(logits_NV, cap);
  with_dtype(logits_NV.dtype(), [&]<typename T>() {
    cuda::soft_cap(on(stream), pointer<T>(logits_NV), cap, logits_NV.numel());
  });
}

void CudaOps::cross_entropy_forward(ConstTensor logits_NV,
                                    ConstTensor targets_N,
                                    std::int64_t vocab_size,
                                    Tensor losses_N,
                                    Stream& stream) {
  const Launch to = on(stream);
  const VocabSlice slice = whole_vocabulary(logits_NV, vocab_size);
  with_dtype(logits_NV.dtype(), [&]<typename T>() {
    expect_of_tokens(losses_N, "cross-entropy: losses", targets_N.numel());
    cuda::cross_entropy_losses(to, rows_of<T>(to, logits_NV, targets_N, slice),
                               pointer<float>(losses_N));
  });
}

void CudaOps::cross_entropy_forward_backward(Tensor logits_NV,
                                             ConstTensor targets_N,
                                             std::int64_t vocab_size,
                                             const LogitGradient& gradient,
                                             Tensor losses_N,
                                             Stream& stream) {
  const Launch to = on(stream);
  const VocabSlice slice = whole_vocabulary(logits_NV, vocab_size);
  with_dtype(logits_NV.dtype(), [&]<typename T>() {
    expect_of_tokens(losses_N, "cross-entropy: losses", targets_N.numel());
    cuda::cross_entropy_losses_and_gradient(to, rows_of<T>(to, logits_NV, targets_N, slice),
                                            gradient, pointer<float>(losses_N));
  });
}

void CudaOps::cross_entropy_partial(ConstTensor logits_NV,
                                    ConstTensor targets_N,
                                    const VocabSlice& slice,
                                    Tensor stats_N3,
                                    Stream& stream) {
  const Launch to = on(stream);
  with_dtype(logits_NV.dtype(), [&]<typename T>() {
    expect_of_tokens(stats_N3, "cross-entropy: stats", targets_N.numel(), 3);
    cuda::cross_entropy_stats(to, rows_of<T>(to, logits_NV, targets_N, slice),
                              pointer<float>(stats_N3));
  });
}

void CudaOps::cross_entropy_combine(ConstTensor stats_RN3,
                                    Tensor logsumexp_N,
                                    Tensor losses_N,
                                    Stream& stream) {
  const std::int64_t tokens = losses_N.numel();
  const std::int64_t ranks = expect_combine(stats_RN3, logsumexp_N, losses_N);
  cuda::cross_entropy_combine(on(stream), pointer<float>(stats_RN3), ranks, tokens,
                              pointer<float>(logsumexp_N), pointer<float>(losses_N));
}

void CudaOps::find_hits(ConstTensor stats_RN3,
                        ConstTensor targets_N,
                        Tensor hits_N,
                        Stream& stream) {
  const std::int64_t ranks = expect_hits(stats_RN3, targets_N, hits_N);
  cuda::find_hits(on(stream), pointer<float>(stats_RN3), ranks, hits_N.numel(),
                  pointer<std::int32_t>(targets_N), pointer<float>(hits_N));
}

void CudaOps::cross_entropy_gradient(Tensor logits_NV,
                                     ConstTensor targets_N,
                                     const VocabSlice& slice,
                                     ConstTensor logsumexp_N,
                                     const LogitGradient& gradient,
                                     Stream& stream) {
  const Launch to = on(stream);
  with_dtype(logits_NV.dtype(), [&]<typename T>() {
    expect_of_tokens(logsumexp_N, "cross-entropy: logsumexp", targets_N.numel());
    cuda::cross_entropy_gradient(to, rows_of<T>(to, logits_NV, targets_N, slice),
                                 pointer<float>(logsumexp_N), gradient);
  });
}

void CudaOps::count_targets(ConstTensor targets_N, Tensor total, Write write, Stream& stream) {
  expect_count(targets_N, total);
  cuda::count_targets(on(stream), pointer<std::int32_t>(targets_N), targets_N.numel(),
                      pointer<double>(total), write == Write::kAdd);
}

}  // namespace dstrain
