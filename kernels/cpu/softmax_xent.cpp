// Softmax cross-entropy, one task per row or few rows.
//
// N tokens, V vocabulary
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

struct Rows {
  std::int64_t tokens;
  std::int64_t vocabulary;
  std::int64_t per_task;
};

Rows rows_of(const ConstTensor& logits_NV,
             const ConstTensor& targets_N,
             const ConstTensor& losses_N) {
  const auto [tokens, vocabulary] = as_matrix(logits_NV);
  expect(targets_N, "cross-entropy: targets", DType::kI32, tokens);
  expect(losses_N, "cross-entropy: losses", DType::kF32, tokens);
  constexpr std::int64_t kPiece = 1 << 14;  // elements that make a task worth its while
  return {tokens, vocabulary,
          std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, vocabulary))};
}

void check_targets(const ConstTensor& targets_N, std::int64_t vocabulary) {
  const auto targets = targets_N.as<std::int32_t>();
  const auto [lowest, highest] = std::minmax_element(targets.begin(), targets.end());
  check(targets.empty() || (*lowest >= 0 && *highest < vocabulary),
        "cross-entropy: targets from {} to {} are outside the vocabulary [0, {})", *lowest,
        *highest, vocabulary);
}

}  // namespace

void CpuOps::cross_entropy_forward(ConstTensor logits_NV,
                                   ConstTensor targets_N,
                                   Tensor losses_N,
                                   Stream& stream) {
  const Rows rows = rows_of(logits_NV, targets_N, losses_N);
  stream.run([=, this] {
    check_targets(targets_N, rows.vocabulary);
    const auto* const targets = pointer<std::int32_t>(targets_N);
    float* const losses = pointer<float>(losses_N);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const T* const logits = pointer<T>(logits_NV);
      parallel_pieces(
          threads_, rows.tokens, rows.per_task, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t n = begin; n < end; ++n) {
              losses[n] =
                  loops.cross_entropy(logits + n * rows.vocabulary, rows.vocabulary, targets[n]);
            }
          });
    });
  });
}

void CpuOps::cross_entropy_forward_backward(Tensor logits_NV,
                                            ConstTensor targets_N,
                                            float gradient_scale,
                                            Tensor losses_N,
                                            Stream& stream) {
  const Rows rows = rows_of(logits_NV, targets_N, losses_N);
  stream.run([=, this] {
    check_targets(targets_N, rows.vocabulary);
    const auto* const targets = pointer<std::int32_t>(targets_N);
    float* const losses = pointer<float>(losses_N);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      T* const logits = pointer<T>(logits_NV);
      parallel_pieces(
          threads_, rows.tokens, rows.per_task, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t n = begin; n < end; ++n) {
              losses[n] = loops.cross_entropy_gradient(logits + n * rows.vocabulary,
                                                       rows.vocabulary, targets[n], gradient_scale);
            }
          });
    });
  });
}

}  // namespace dstrain
