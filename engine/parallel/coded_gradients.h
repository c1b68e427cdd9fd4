// CodedGradients: sums units' gradients over the data-parallel ranks in a block code, by
// all-to-alls in place of a reduce-scatter (qgZ: Wang et al. 2023, section 3.3). Numbers are added
// in f32, never as codes; each is coded once or twice on its way, and not once for every rank that
// adds to it.
//
// A unit has a slice for every rank: rank (a, i), the i-th of the a-th group of neighbours, owns
// slice (a, i). With two groups of three:
//   bucket        (0,0) (0,1) (0,2) (1,0) (1,1) (1,2)       f32, this rank's gradients
//   coded         (0,0) (1,0) │ (0,1) (1,1) │ (0,2) (1,2)   what neighbour i needs lies together
//   ⇄ neighbours  all-to-all: the neighbours' parts of (0,i) and (1,i) -> added up in the bucket
//   coded again   (0,i) │ (1,i)
//   ⇄ across      all-to-all: what all groups have of (a,i) -> added up -> my slice of the
//   gradients
// Without groups there is the first exchange alone, over all ranks; likewise where every group has
// all slices (MiCS), over its own.
// On the wire, of Ψ elements in 4 bits: Ψ/2 bytes a rank among neighbours, Ψ/2 a group across, and
// the scales.
#pragma once

#include <vector>

#include "engine/parallel/data_parallel.h"
#include "kernels/math/block_code.h"

namespace dstrain {

class CodedGradients {
 public:
  /// Everything happens on `stream`. What `parts` refers to outlives this, and so does `stream`.
  CodedGradients(const DataParallelParts& parts, Stream& stream);

  /// Writes or adds this rank's slice of the sum of the unit's gradients to `sum`. `gradients`:
  /// f32, padding included; undefined afterwards.
  void reduce_scatter(int unit, Tensor gradients, Tensor sum, Write write);

 private:
  /// Sends each of `group`, of which there are `ranks`, its part of what is coded, `parts` slices,
  /// and writes the sum of what comes in to `sums`.
  void exchange(Communicator& group, Tensor sums, std::int64_t parts, std::int64_t slice);

  const DataParallelParts& parts_;
  Stream& stream_;
  const BlockCode code_;
  const int across_;                  ///< groups of neighbours that have other slices
  std::vector<std::int64_t> counts_;  ///< bytes for each rank of a group; capacity for the largest
};

}  // namespace dstrain
