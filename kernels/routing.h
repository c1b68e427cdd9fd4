// What the operations of experts take (ops_list.inc): how tokens choose them, in which order their
// rows then lie, and which of these rows each expert has.
//
// N tokens (B sequences × T positions), E experts, K chosen of them per token, M ≤ N · K rows, each
// of a token for one of its experts; slot n · K + j is the choice j of token n
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/math/router.h"

namespace dstrain {

/// Each token chooses the K experts of the highest scores, of equal ones the lower, in falling
/// order. NaN is the lowest, so that there are always K different ones.
struct ExpertChoice {
  RouterRule rule;
  ConstTensor logits_NE;  ///< f32
  ConstTensor bias_E;     ///< f32, added to scores for choosing alone; optional
  Tensor logsumexp_N;     ///< f32, of the logarithms of scores (router_score)
  Tensor chosen_NK;       ///< i32
  Tensor weights_NK;      ///< f32
};

/// How sequences of T tokens lie in rows: chunk by chunk, and in a chunk sequence by sequence. What
/// is counted by sequence is then counted by chunk of each, so that B is the chunks of all.
///
/// Where the rows are divided once more, among neighbouring ranks, in `parts` of which this one has
/// `part`, a chunk is counted in so many `pieces` that none lies in two parts. B is then the pieces
/// here, and counts of all ranks have those of every part, in the order of the rows.
struct SequenceChunks {
  std::int64_t chunks = 1;  ///< of each sequence here
  std::int64_t ranks = 1;   ///< that have as many tokens each of every sequence
  std::int64_t pieces = 1;  ///< of each chunk
  std::int64_t parts = 1;
  std::int64_t part = 0;
};

/// How busy experts are, sequence by sequence.
struct ExpertLoad {
  RouterRule rule;
  ConstTensor logits_NE;
  ConstTensor logsumexp_N;
  ConstTensor chosen_NK;
  Tensor counts_BE;  ///< i32: the tokens that chose the expert
  /// f32, whose sum over the chunks and ranks of a sequence is E · f · P; f: counts / T, P: the
  /// mean of the shares (router_share); optional.
  Tensor balance_BE;
  /// i32 [parts · B, E], for f: of all ranks together; optional where one has all
  ConstTensor ranks_counts_BE;
  SequenceChunks sequences;
};

/// Gradients of the logits: through the weights, and of two losses of their own,
/// balance_scale · Σ E · f · P, in which counts are constants, and z_scale · Σ logsumexp_N².
struct ExpertChoiceBackward {
  RouterRule rule;
  ConstTensor logits_NE;
  ConstTensor logsumexp_N;
  ConstTensor chosen_NK;
  ConstTensor weights_NK;
  ConstTensor d_weights_NK;  ///< f32
  ConstTensor counts_BE;     ///< i32 [parts · B, E], of all ranks together
  SequenceChunks sequences;
  float balance_scale = 0.0F;
  float z_scale = 0.0F;
  Tensor d_logits_NE;  ///< compute dtype
};

/// Orders slots by expert, and those of an expert by token. Where experts take no more than
/// `capacity` tokens of a sequence, the first ones count.
struct ExpertOrder {
  ConstTensor chosen_NK;
  ConstTensor counts_BE;      ///< i32, of the choices
  std::int64_t capacity = 0;  ///< 0: they take all
  Tensor rows_E;              ///< i32: the rows of each expert
  Tensor slots_NK;            ///< i32: the slot of each of the M rows; the rest is left as it is
  Tensor places_NK;           ///< i32: the row of each slot, -1 where it has none
};

/// The gradient through y = Σ over a token's rows of weight · (row · wᵀ + bias), given d_row =
/// dy_MC · w, without the weights: d_weights_NK of the M slots = d_row · row (+ dy · bias), and
/// d_row becomes weight · d_row.
struct WeightedRowsBackward {
  ConstTensor slots_M;     ///< i32
  ConstTensor weights_NK;  ///< f32
  ConstTensor row_MF;
  Tensor d_row_MF;
  ConstTensor dy_MC;      ///< where there is a bias, as the next two
  ConstTensor bias_EC;    ///< compute dtype; optional
  ConstTensor chosen_NK;  ///< i32
  Tensor d_weights_NK;    ///< f32; other slots are left as they are
};

}  // namespace dstrain
