// The checks that all devices share of the operands of experts. Meanings: routing.h.
#pragma once

#include <numeric>

#include "kernels/core/expect.h"
#include "kernels/matrix_product.h"
#include "kernels/routing.h"

namespace dstrain {

struct RouterSizes {
  std::int64_t tokens;   ///< N
  std::int64_t experts;  ///< E
  // 0 where sequences do not matter:
  std::int64_t piece = 0;   ///< tokens that are counted together
  std::int64_t length = 0;  ///< T, those of other ranks included
  CountedPieces counted{};
};

inline RouterSizes expect_router(const RouterRule& rule,
                                 const ConstTensor& logits_NE,
                                 const ConstTensor& logsumexp_N,
                                 const ConstTensor& chosen_NK) {
  const auto [tokens, experts] = as_matrix(logits_NE);
  expect(logits_NE, "router: logits", DType::kF32, tokens * experts);
  expect(logsumexp_N, "router: logsumexp", DType::kF32, tokens);
  expect(chosen_NK, "router: chosen experts", DType::kI32, tokens * rule.per_token);
  check(rule.groups >= 1 && experts % rule.groups == 0 && 1 <= rule.chosen_groups &&
            rule.chosen_groups <= rule.groups && 1 <= rule.per_token &&
            rule.per_token <= experts / rule.groups * rule.chosen_groups,
        "router: {} of {} experts, in {} of {} groups", rule.per_token, experts, rule.chosen_groups,
        rule.groups);
  return {.tokens = tokens, .experts = experts};
}

inline RouterSizes expect_choice(const ExpertChoice& choice) {
  const RouterSizes sizes =
      expect_router(choice.rule, choice.logits_NE, choice.logsumexp_N, choice.chosen_NK);
  expect_optional(choice.bias_E, "router: bias", DType::kF32, sizes.experts);
  expect(choice.weights_NK, "router: weights", DType::kF32, sizes.tokens * choice.rule.per_token);
  return sizes;
}

/// The tokens of a sequence, or of a chunk of one, of N tokens that are counted by B of them.
inline std::int64_t expect_counts(const ConstTensor& counts_BE,
                                  std::int64_t tokens,
                                  std::int64_t experts) {
  const std::int64_t sequences = as_matrix(counts_BE).rows;
  expect(counts_BE, "experts: counts", DType::kI32, sequences * experts);
  check(tokens == 0 || (sequences > 0 && tokens % sequences == 0),
        "experts: counts of {} sequences for {} tokens", sequences, tokens);
  return tokens == 0 ? 0 : tokens / sequences;
}

/// Adds how sequences lie to the sizes. `pieces` are those of this rank.
inline void expect_sequences(const SequenceChunks& of, std::int64_t pieces, RouterSizes& sizes) {
  const std::int64_t all = pieces * of.parts;
  check(of.chunks >= 1 && of.ranks >= 1 && of.pieces >= 1 && all % (of.chunks * of.pieces) == 0,
        "experts: {} chunks of sequences in {} pieces, {} of each, over {} ranks", all, of.pieces,
        of.chunks, of.ranks);
  check(0 <= of.part && of.part < of.parts, "experts: part {} of {}", of.part, of.parts);
  check(sizes.tokens == 0 || (pieces > 0 && sizes.tokens % pieces == 0),
        "experts: {} tokens in {} pieces of sequences", sizes.tokens, pieces);
  sizes.piece = sizes.tokens == 0 ? 0 : sizes.tokens / pieces;
  sizes.length = sizes.piece * of.pieces * of.chunks * of.ranks;
  sizes.counted = {.sequences = all / (of.chunks * of.pieces),
                   .chunks = of.chunks,
                   .pieces = of.pieces,
                   .first = of.part * pieces};
}

inline RouterSizes expect_load(const ExpertLoad& load) {
  RouterSizes sizes = expect_router(load.rule, load.logits_NE, load.logsumexp_N, load.chosen_NK);
  const SequenceChunks& of = load.sequences;
  expect_counts(load.counts_BE, sizes.tokens, sizes.experts);
  expect_sequences(of, as_matrix(load.counts_BE).rows, sizes);
  expect_optional(load.balance_BE, "experts: balance", DType::kF32, load.counts_BE.numel());
  expect_optional(load.ranks_counts_BE, "experts: counts of all ranks", DType::kI32,
                  load.counts_BE.numel() * of.parts);
  const bool is_whole = of.chunks == 1 && of.ranks == 1 && of.pieces == 1;
  check(is_whole || load.balance_BE.empty() || !load.ranks_counts_BE.empty(),
        "experts: the balance of parts of sequences without the counts of all ranks");
  return sizes;
}

inline RouterSizes expect_choice_backward(const ExpertChoiceBackward& back) {
  RouterSizes sizes = expect_router(back.rule, back.logits_NE, back.logsumexp_N, back.chosen_NK);
  const std::int64_t slots = back.chosen_NK.numel();
  expect(back.weights_NK, "router: weights", DType::kF32, slots);
  expect(back.d_weights_NK, "router: gradients of weights", DType::kF32, slots);
  expect_compute_dtype(back.d_logits_NE.dtype(), "router: gradients of logits");
  expect(back.d_logits_NE, "router: gradients of logits", back.d_logits_NE.dtype(),
         back.logits_NE.numel());
  const std::int64_t pieces = as_matrix(back.counts_BE).rows;
  expect(back.counts_BE, "experts: counts of all ranks", DType::kI32, pieces * sizes.experts);
  check(back.sequences.parts >= 1 && pieces % back.sequences.parts == 0,
        "experts: counts of {} pieces of sequences in {} parts", pieces, back.sequences.parts);
  expect_sequences(back.sequences, pieces / back.sequences.parts, sizes);
  return sizes;
}

struct OrderSizes {
  std::int64_t slots;      ///< N · K
  std::int64_t per_token;  ///< K
  std::int64_t experts;    ///< E
  std::int64_t sequences;  ///< B
};
inline OrderSizes expect_order(const ExpertOrder& order) {
  const auto [tokens, per_token] = as_matrix(order.chosen_NK);
  const auto [sequences, experts] = as_matrix(order.counts_BE);
  const std::int64_t slots = tokens * per_token;
  expect_counts(order.counts_BE, tokens, experts);
  expect(order.chosen_NK, "experts: chosen", DType::kI32, slots);
  expect(order.rows_E, "experts: rows", DType::kI32, experts);
  expect(order.slots_NK, "experts: slots", DType::kI32, slots);
  expect(order.places_NK, "experts: places", DType::kI32, slots);
  check(order.capacity >= 0, "experts that take {} tokens of a sequence", order.capacity);
  return {slots, per_token, experts, sequences};
}

struct RowSizes {
  std::int64_t rows;       ///< M
  std::int64_t tokens;     ///< N
  std::int64_t per_token;  ///< K
  std::int64_t width;      ///< C
};
/// Of x_NC and y_MC with an index of the slots of the rows, or of the rows of the slots.
inline RowSizes expect_rows(const ConstTensor& x_NC,
                            const ConstTensor& y_MC,
                            const ConstTensor& index,
                            std::int64_t indices,
                            std::int64_t per_token,
                            const ConstTensor& weights_NK) {
  const auto [tokens, width] = as_matrix(x_NC);
  const std::int64_t rows = as_matrix(y_MC).rows;
  expect_compute_dtype(x_NC.dtype(), "rows of experts");
  expect(x_NC, "rows of experts: tokens", x_NC.dtype(), tokens * width);
  expect(y_MC, "rows of experts: rows", x_NC.dtype(), rows * width);
  expect(index, "rows of experts: index", DType::kI32, indices);
  expect_optional(weights_NK, "rows of experts: weights", DType::kF32, tokens * per_token);
  return {rows, tokens, per_token, width};
}

/// Gives M, K and F as rows, per_token and width.
inline RowSizes expect_weighted_rows(const WeightedRowsBackward& back) {
  const auto [rows, width] = as_matrix(back.row_MF);
  const DType dtype = back.row_MF.dtype();
  const auto [tokens, per_token] = as_matrix(back.weights_NK);
  expect_compute_dtype(dtype, "weighted rows");
  expect(back.d_row_MF, "weighted rows: gradients", dtype, rows * width);
  expect(back.slots_M, "weighted rows: slots", DType::kI32, rows);
  expect(back.weights_NK, "weighted rows: weights", DType::kF32, tokens * per_token);
  expect(back.d_weights_NK, "weighted rows: gradients of weights", DType::kF32, tokens * per_token);
  if (!back.bias_EC.empty()) {
    expect(back.bias_EC, "weighted rows: bias", dtype, back.bias_EC.numel());
    expect(back.dy_MC, "weighted rows: dy", dtype, rows * as_matrix(back.bias_EC).width);
    expect(back.chosen_NK, "weighted rows: chosen", DType::kI32, tokens * per_token);
  }
  return {rows, tokens, per_token, width};
}

/// Calls product(expert, first row, rows) for the experts in turn; checks that M rows are theirs.
template <typename Product>
void for_each_expert(ExpertRows rows, std::int64_t experts, std::int64_t m, Product&& product) {
  check(static_cast<std::int64_t>(rows.size()) == experts, "rows of {} experts, expected {}",
        rows.size(), experts);
  std::int64_t first = 0;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t count = rows[static_cast<std::size_t>(expert)];
    check(count >= 0 && first + count <= m, "expert {} has rows [{}, {}) of {}", expert, first,
          first + count, m);
    product(expert, first, count);
    first += count;
  }
  check(first == m, "experts have {} rows of {}", first, m);
}

/// An expert's slice of a tensor [E, …], without the first dim; empty where there is none.
template <typename View>
View of_expert(const View& tensor, std::int64_t expert) {
  if (tensor.empty()) {
    return {};
  }
  const View slice = tensor.rows(expert, expert + 1);
  Shape shape;
  for (int dim = 1; dim < tensor.shape().rank(); ++dim) {
    shape.push_back(tensor.dim(dim));
  }
  return slice.view(shape);
}

}  // namespace dstrain
