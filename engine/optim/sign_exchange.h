// SignExchange: the mean over the data-parallel ranks of one row of numbers for every parameter,
// which travels as signs (SignLayout), with error feedback: what the signs leave out of a row stays
// on the rank and is part of the next one, as is what a server leaves out of the mean (Tang et al.
// 2021, arXiv 2102.02888, algorithm 1). The 1-bit optimizers share it.
//
//   optimizer   row of each unit += what this rank has to say
//   exchange    row -> signs, row keeps the rest ⇄ ⇠ mean -> the memory of the unit's gradient
//   optimizer   the update, from the mean
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/optim/optimizer.h"

namespace dstrain {

class SignExchange {
 public:
  static OptimizerScratch declare(Blueprint& blueprint);
  /// `parts` must have a sign layout; what it refers to outlives this. `squares`: the scratch of
  /// declare().
  SignExchange(const OptimizerParts& parts, BufferRef squares);

  /// The numbers of a unit, f32 and without padding, that this rank has not yet told the others.
  /// An exchange takes along whatever was added to them before.
  [[nodiscard]] Tensor row(const Site& site, int unit) const;
  /// Writes the mean over ranks of all rows to the memory of gradients, whose own content is lost.
  /// The same bits on all ranks.
  void exchange(const Site& site);
  /// The same of momenta, each rank's moved along its own gradient: beta1 · momentum + (1 - beta1)
  /// · gradient, which is not kept anywhere else.
  void exchange_momenta(const Site& site,
                        std::span<const UnitState> units,
                        double beta1,
                        double gradient_scale);
  /// Forgets what rows and servers kept, before rows of another kind.
  void forget(const Site& site) const;

 private:
  [[nodiscard]] Tensor mean(const Site& site, const SignLayout::Row& row) const;
  void encode_rows(const Site& site, Tensor messages) const;
  void serve(const Site& site, Tensor received, Tensor answer) const;
  void decode_means(const Site& site, Tensor answers) const;
  void take_own_rows(const Site& site) const;

  const SignLayout& layout_;
  const ShardMap& shards_;
  UnitGroups groups_;
  BufferRef squares_;
  std::vector<std::int64_t> counts_;  // bytes for each rank
};

}  // namespace dstrain
