// Softmax cross-entropy, one task per row or few rows. The whole vocabulary and a slice of it go
// through the same functions, so that one slice gives the same bits as no slices.
//
// N tokens, V vocabulary or a slice of it, R ranks that hold the slices
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/cross_entropy_operands.h"
#include "kernels/ignored_target.h"
#include "kernels/math/vector_math.h"

namespace dstrain {
namespace {

/// The rows of a matrix of logits: which columns count, and where each row's target is.
struct LogitRows {
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t real;  ///< columns that are not padding
  VocabSlice slice;
  const std::int32_t* targets;

  [[nodiscard]] bool is_ignored(std::int64_t n) const { return targets[n] == kIgnoredTarget; }
  /// The target's column; outside [0, real) where another slice has the target.
  [[nodiscard]] std::int64_t target_column(std::int64_t n) const {
    return targets[n] - slice.first;
  }
};

LogitRows rows_of(const ConstTensor& logits_NV,
                  const ConstTensor& targets_N,
                  const VocabSlice& slice) {
  const auto [tokens, columns, real] = expect_logits(logits_NV, targets_N, slice);
  return {.tokens = tokens,
          .columns = columns,
          .real = real,
          .slice = slice,
          .targets = pointer<std::int32_t>(targets_N)};
}

/// Checks the targets, which come from files.
void check_targets(const LogitRows& rows) {
  std::int64_t lowest = 0;
  std::int64_t highest = -1;
  for (std::int64_t n = 0; n < rows.tokens; ++n) {
    if (!rows.is_ignored(n)) {
      lowest = std::min<std::int64_t>(lowest, rows.targets[n]);
      highest = std::max<std::int64_t>(highest, rows.targets[n]);
    }
  }
  check(lowest >= 0 && highest < rows.slice.vocab_size,
        "cross-entropy: targets from {} to {} are outside the vocabulary [0, {})", lowest, highest,
        rows.slice.vocab_size);
}

template <typename Body>
void for_each_row(int threads, const LogitRows& rows, Body&& body) {
  constexpr std::int64_t kPiece = 1 << 14;  // elements that make a task worth its while
  const std::int64_t per_task = kPiece / std::max<std::int64_t>(1, rows.columns);
  parallel_pieces(threads, rows.tokens, std::max<std::int64_t>(1, per_task),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t n = begin; n < end; ++n) {
                      body(n);
                    }
                  });
}

/// The statistics of a row of one slice, or of the whole vocabulary; three numbers of stats_N3.
struct RowStats {
  float largest;
  float total;         ///< Σ exp(logit - largest)
  float target_logit;  ///< 0 where another slice has the target
};
static_assert(sizeof(RowStats) == 3 * sizeof(float));

struct RowLoss {
  float logsumexp;
  float loss;
};

template <typename T>
RowStats stats_of(const TypedLoops<T>& loops, const LogitRows& rows, const T* row, std::int64_t n) {
  if (rows.is_ignored(n)) {
    // One slice with a sum of 1 makes the loss over all slices log(1).
    return {.largest = 0.0F, .total = rows.slice.first == 0 ? 1.0F : 0.0F, .target_logit = 0.0F};
  }
  const ExpSum sum = loops.sum_of_exp(row, rows.real);
  const std::int64_t target = rows.target_column(n);
  const bool has_target = 0 <= target && target < rows.real;
  return {.largest = sum.largest,
          .total = sum.total,
          .target_logit = has_target ? to_float(row[target]) : 0.0F};
}

/// Combines the slices' rows, which lie `stride` apart, in rank order. A slice of padding adds 0
/// times exp(-infinity), a number in fast_exp.
RowStats combined(const RowStats* slices, std::int64_t ranks, std::int64_t stride) {
  RowStats whole{slices[0].largest, 0.0F, 0.0F};
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    whole.largest = std::max(whole.largest, slices[rank * stride].largest);
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const RowStats& slice = slices[rank * stride];
    whole.total += slice.total * fast_exp(slice.largest - whole.largest);
    whole.target_logit += slice.target_logit;
  }
  return whole;
}

/// The loss from differences of logits: it keeps digits that logsumexp, which may be large, has
/// not.
RowLoss loss_of(const RowStats& row) {
  const float log_of_total = std::log(row.total);
  return {.logsumexp = row.largest + log_of_total,
          .loss = log_of_total - (row.target_logit - row.largest)};
}

template <typename T>
void to_gradient(const TypedLoops<T>& loops,
                 const LogitRows& rows,
                 T* row,
                 std::int64_t n,
                 float logsumexp,
                 const LogitGradient& gradient) {
  if (rows.is_ignored(n)) {
    std::fill(row, row + rows.columns, T{});
    return;
  }
  loops.cross_entropy_gradient(row, rows.real, rows.target_column(n), logsumexp,
                               gradient.scale_of(n), gradient.cap);
  std::fill(row + rows.real, row + rows.columns, T{});
}

}  // namespace

void CpuOps::soft_cap(Tensor logits_NV, float cap, Stream& stream) {
  expect_soft_cap(logits_NV, cap);
  stream.run([=, this] {
    note_moved(logits_NV, logits_NV);
    constexpr std::int64_t kElements = 1 << 14;
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, logits_NV.numel(), kElements,
                      [&](std::int64_t begin, std::int64_t end) {
                        loops.soft_cap(pointer<T>(logits_NV) + begin, cap, end - begin);
                      });
    });
  });
}

void CpuOps::cross_entropy_forward(ConstTensor logits_NV,
                                   ConstTensor targets_N,
                                   std::int64_t vocab_size,
                                   Tensor losses_N,
                                   Stream& stream) {
  const LogitRows rows = rows_of(logits_NV, targets_N, whole_vocabulary(logits_NV, vocab_size));
  expect_of_tokens(losses_N, "cross-entropy: losses", rows.tokens);
  stream.run([=, this] {
    note_moved(logits_NV);
    check_targets(rows);
    float* const losses = pointer<float>(losses_N);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const T* const logits = pointer<T>(logits_NV);
      for_each_row(threads_, rows, [&](std::int64_t n) {
        losses[n] = loss_of(stats_of(loops, rows, logits + n * rows.columns, n)).loss;
      });
    });
  });
}

void CpuOps::cross_entropy_forward_backward(Tensor logits_NV,
                                            ConstTensor targets_N,
                                            std::int64_t vocab_size,
                                            const LogitGradient& gradient,
                                            Tensor losses_N,
                                            Stream& stream) {
  const LogitRows rows = rows_of(logits_NV, targets_N, whole_vocabulary(logits_NV, vocab_size));
  expect_of_tokens(losses_N, "cross-entropy: losses", rows.tokens);
  stream.run([=, this, gradient = gradient] {
    note_moved(logits_NV, logits_NV);
    check_targets(rows);
    float* const losses = pointer<float>(losses_N);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      T* const logits = pointer<T>(logits_NV);
      for_each_row(threads_, rows, [&](std::int64_t n) {
        T* const row = logits + n * rows.columns;
        const RowLoss result = loss_of(stats_of(loops, rows, row, n));
        losses[n] = result.loss;
        to_gradient(loops, rows, row, n, result.logsumexp, gradient);
      });
    });
  });
}

void CpuOps::cross_entropy_partial(ConstTensor logits_NV,
                                   ConstTensor targets_N,
                                   const VocabSlice& slice,
                                   Tensor stats_N3,
                                   Stream& stream) {
  const LogitRows rows = rows_of(logits_NV, targets_N, slice);
  expect_of_tokens(stats_N3, "cross-entropy: stats", rows.tokens, 3);
  stream.run([=, this] {
    note_moved(logits_NV);
    check_targets(rows);
    auto* const stats = pointer<RowStats>(stats_N3);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const T* const logits = pointer<T>(logits_NV);
      for_each_row(threads_, rows, [&](std::int64_t n) {
        stats[n] = stats_of(loops, rows, logits + n * rows.columns, n);
      });
    });
  });
}

void CpuOps::cross_entropy_combine(ConstTensor stats_RN3,
                                   Tensor logsumexp_N,
                                   Tensor losses_N,
                                   Stream& stream) {
  const std::int64_t tokens = losses_N.numel();
  const std::int64_t ranks = expect_combine(stats_RN3, logsumexp_N, losses_N);
  stream.run([=, this] {
    constexpr std::int64_t kRows = 1024;
    const auto* const stats = pointer<RowStats>(stats_RN3);
    parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const RowLoss result = loss_of(combined(stats + n, ranks, tokens));
        pointer<float>(logsumexp_N)[n] = result.logsumexp;
        pointer<float>(losses_N)[n] = result.loss;
      }
    });
  });
}

void CpuOps::find_hits(ConstTensor stats_RN3,
                       ConstTensor targets_N,
                       Tensor hits_N,
                       Stream& stream) {
  const std::int64_t tokens = hits_N.numel();
  const std::int64_t ranks = expect_hits(stats_RN3, targets_N, hits_N);
  stream.run([=] {
    const auto* const stats = pointer<RowStats>(stats_RN3);
    for (std::int64_t n = 0; n < tokens; ++n) {
      const RowStats whole = combined(stats + n, ranks, tokens);
      const bool counts = pointer<std::int32_t>(targets_N)[n] != kIgnoredTarget;
      pointer<float>(hits_N)[n] = counts && whole.target_logit >= whole.largest ? 1.0F : 0.0F;
    }
  });
}

void CpuOps::cross_entropy_gradient(Tensor logits_NV,
                                    ConstTensor targets_N,
                                    const VocabSlice& slice,
                                    ConstTensor logsumexp_N,
                                    const LogitGradient& gradient,
                                    Stream& stream) {
  const LogitRows rows = rows_of(logits_NV, targets_N, slice);
  expect_of_tokens(logsumexp_N, "cross-entropy: logsumexp", rows.tokens);
  stream.run([=, this, gradient = gradient] {
    note_moved(logits_NV, logits_NV);
    check_targets(rows);
    const auto* const logsumexp = pointer<float>(logsumexp_N);
    with_loops(loops_, logits_NV.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      T* const logits = pointer<T>(logits_NV);
      for_each_row(threads_, rows, [&](std::int64_t n) {
        to_gradient(loops, rows, logits + n * rows.columns, n, logsumexp[n], gradient);
      });
    });
  });
}

void CpuOps::count_targets(ConstTensor targets_N, Tensor total, Write write, Stream& stream) {
  expect_count(targets_N, total);
  stream.run([=] {
    const auto* const targets = pointer<std::int32_t>(targets_N);
    const std::int64_t ignored = std::count(targets, targets + targets_N.numel(), kIgnoredTarget);
    double& sum = *pointer<double>(total);
    sum = (write == Write::kAdd ? sum : 0.0) + static_cast<double>(targets_N.numel() - ignored);
  });
}

}  // namespace dstrain
