// CompressedGradients: the mean over the data-parallel ranks of gradients that are compressed, with
// error feedback: what a rank could not say of a matrix is part of what it says next. In stages 0
// and 1, in place of the sums that leave backward:
//
//   all gradients finite?                           Σ world, one number; else the step is skipped
//   remainder += gradient of the mean loss          of each matrix, f32: M, [rows, columns]
//   powersgd (Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2)
//     P = M Q                        Σ all-reduce, with what travels exactly -> orthonormal columns
//     Q = (Pᵀ M)ᵀ                    Σ all-reduce / n
//     gradient = P Qᵀ,  remainder -= gradient
//   top_k (Stich et al. 2018, arXiv 1809.07599)
//     codes of M, remainder = rest   ⇠ all-gather -> gradient = their sum / n
//   the rest of a step, with gradients that are the mean's on every rank (OwnedUpdate)
//
// Q is of the last step (a warm start), at first normal numbers from the seed and the parameter's
// name. A column that a step had no use for is 0 afterwards, in P and in Q, and would stay so: the
// numbers that Q began with are added to it, times 1e-12, which is nothing beside what is not 0.
// The mean over ranks of remainders and gradients is what exact sums would have given; a rank alone
// applies all that it has.
// On the wire, of a matrix: 2 (rows + columns) · rank numbers a rank for a ring in place of
// 2 rows · columns; or 6 bytes for each number kept, from every rank.
#pragma once

#include <cstdint>

#include "engine/parallel/data_parallel.h"
#include "engine/parallel/owned_update.h"

namespace dstrain {

class CompressedGradients {
 public:
  /// The plan of `parts` has a compression. All that it refers to outlives this.
  explicit CompressedGradients(const DataParallelParts& parts);

  /// A step whose gradients lie as backward left them, on every rank its own. Collective. If one
  /// of them is not finite, nothing is changed on any rank.
  StepStats step(const StepParams& params, OwnedUpdate& owned);

 private:
  using Row = CompressionLayout::Row;
  void draw_factors();
  double norm_of_all();
  void add_gradients(float factor);
  void exchange_factors();
  void exchange_largest();
  void take_exact_means();
  void take_own();
  void sum(Tensor numbers);
  [[nodiscard]] Tensor elements(RegionKind kind, int unit, Range range) const;
  [[nodiscard]] Tensor gradient(const Row& row) const;
  [[nodiscard]] Tensor remainder(const Row& row) const;
  [[nodiscard]] Tensor left(const Row& row) const;
  [[nodiscard]] Tensor right(const Row& row) const;

  const DataParallelParts parts_;
  const CompressionLayout& layout_;
  Communicator& group_;
  const float share_;  ///< of a rank in the mean
};

}  // namespace dstrain
