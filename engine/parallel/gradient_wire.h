// GradientWire: sums units' gradients over the data-parallel ranks, in the form in which they
// travel (engine/comm/codec.h), through buckets where that is not the form in which they are kept.
#pragma once

#include <memory>
#include <optional>

#include "engine/comm/codec.h"
#include "engine/parallel/buckets.h"
#include "engine/parallel/data_parallel.h"

namespace dstrain {

class GradientWire {
 public:
  /// `kept` is the region that gradients leave from. Everything happens on `stream`. What `parts`
  /// refers to outlives this, and so does `stream`.
  GradientWire(const DataParallelParts& parts, RegionKind kept, Stream& stream);

  /// Replaces `gradients`, of a unit without its padding, by the sum.
  void all_reduce(int unit, Tensor gradients);
  /// Writes or adds elements `mine` of the sum of the unit's gradients, padding included, to `sum`,
  /// which may be those elements of `gradients` themselves. The others are undefined afterwards.
  void reduce_scatter(int unit, Tensor gradients, Range mine, Tensor sum, Write write);
  /// Replaces `slice`, what this rank keeps of the unit's gradient, by the sum over `copies`. Where
  /// it does not travel as it is kept, it passes through memory of the unit's that has just been
  /// used: the bucket that it left from, or `gradients`, whose elements are undefined afterwards.
  void sum_copies(int unit, Tensor slice, Tensor gradients, Communicator& copies);

 private:
  /// The tensor that travels: the gradients, or a bucket.
  Tensor pack(int unit, Tensor gradients);
  void unpack(int unit, Tensor travelled, Tensor sum, Write write);

  Ops& ops_;
  UnitGroups groups_;
  Stream& stream_;
  std::unique_ptr<Codec> codec_;
  std::optional<Buckets> buckets_;
};

}  // namespace dstrain
