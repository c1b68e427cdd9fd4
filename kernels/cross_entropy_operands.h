// The checks of cross-entropy's operands that all devices share. Shapes: kernels/ops.h.
#pragma once

#include <algorithm>

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

struct LogitSizes {
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t real;  ///< columns that are not padding
};

inline LogitSizes expect_logits(const ConstTensor& logits_NV,
                                const ConstTensor& targets_N,
                                const VocabSlice& slice) {
  const auto [tokens, columns] = as_matrix(logits_NV);
  expect(logits_NV, "cross-entropy: logits", logits_NV.dtype(), tokens * columns);
  expect(targets_N, "cross-entropy: targets", DType::kI32, tokens);
  check(slice.first >= 0, "cross-entropy: a slice that begins at entry {}", slice.first);
  return {.tokens = tokens,
          .columns = columns,
          .real = std::clamp<std::int64_t>(slice.vocab_size - slice.first, 0, columns)};
}

inline void expect_soft_cap(const ConstTensor& logits_NV, float cap) {
  expect_compute_dtype(logits_NV.dtype(), "soft cap: logits");
  check(cap > 0.0F, "a soft cap of {}", cap);
}

/// The slice that is the whole vocabulary.
inline VocabSlice whole_vocabulary(const ConstTensor& logits_NV, std::int64_t vocab_size) {
  const std::int64_t columns = as_matrix(logits_NV).width;
  check(vocab_size <= columns, "cross-entropy: {} columns of logits for a vocabulary of {}",
        columns, vocab_size);
  return {.first = 0, .vocab_size = vocab_size};
}

/// Checks that a tensor has one number a token, or `each`.
inline void expect_of_tokens(const ConstTensor& tensor,
                             const char* name,
                             std::int64_t tokens,
                             std::int64_t each = 1) {
  expect(tensor, name, DType::kF32, tokens * each);
}

/// Returns the number of ranks.
inline std::int64_t expect_combine(const ConstTensor& stats_RN3,
                                   const ConstTensor& logsumexp_N,
                                   const ConstTensor& losses_N) {
  const std::int64_t tokens = losses_N.numel();
  check(stats_RN3.shape().rank() == 3 && stats_RN3.dim(0) >= 1,
        "cross-entropy: stats of shape {}, expected [ranks, tokens, 3]",
        stats_RN3.shape().to_string());
  const std::int64_t ranks = stats_RN3.dim(0);
  expect_of_tokens(stats_RN3, "cross-entropy: stats", ranks * tokens, 3);
  expect_of_tokens(logsumexp_N, "cross-entropy: logsumexp", tokens);
  expect_of_tokens(losses_N, "cross-entropy: losses", tokens);
  return ranks;
}

/// Returns the number of ranks.
inline std::int64_t expect_hits(const ConstTensor& stats_RN3,
                                const ConstTensor& targets_N,
                                const ConstTensor& hits_N) {
  expect(targets_N, "hits: targets", DType::kI32, hits_N.numel());
  return expect_combine(stats_RN3, hits_N, hits_N);
}

inline void expect_count(const ConstTensor& targets_N, const ConstTensor& total) {
  expect(targets_N, "count of targets", DType::kI32, targets_N.numel());
  expect(total, "count of targets: total", DType::kF64, 1);
}

}  // namespace dstrain
