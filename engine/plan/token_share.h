// ContextShape: which tokens of every sequence a rank has, where the ranks of a context-parallel
// group share sequences, and whose keys the queries of whom see. Pure arithmetic; without context
// parallelism a rank has one chunk, the whole sequence.
//
// The group is ring × heads ranks. A sequence is cut into chunks for the ring, which stay where
// they are while keys and values come by (Liu et al. 2023, "Ring attention with blockwise
// transformers"); each of them is cut once more among the ranks that have the same place in the
// ring, and that exchange tokens for heads while they attend (Jacobs et al. 2023, "DeepSpeed
// Ulysses"; both together: Fang and Zhao 2024, "USP").
//
// Causal queries see what is before them: with one chunk a rank the first ranks of the ring wait
// for the last. In zigzag order rank r of R has chunks r and 2R-1-r of 2R, which together see as
// much as anyone's:
//   ring 4, zigzag      0 1 2 3 3 2 1 0        ring 4, in order      0 1 2 3
//
// The rows of a rank's activations go chunk by chunk, in a chunk sequence by sequence, in there
// token by token.
#pragma once

#include <cstdint>

#include "engine/plan/shard_map.h"

namespace dstrain {

struct ContextShape {
  int ring = 1;  ///< R
  int ring_rank = 0;
  int heads = 1;  ///< u
  int heads_rank = 0;
  bool zigzag = false;

  [[nodiscard]] int ranks() const { return ring * heads; }
  /// The number of chunks of a sequence that a rank has.
  [[nodiscard]] int chunks() const { return zigzag && ring > 1 ? 2 : 1; }
  /// Sequences must be multiples of so many tokens.
  [[nodiscard]] std::int64_t unit() const { return std::int64_t{1} * ranks() * chunks(); }
  /// The positions of a chunk that a place in the ring has, of sequences of so many tokens: all
  /// that its ranks have of it together.
  [[nodiscard]] Range ring_chunk(int of_ring_rank, int chunk, std::int64_t sequence) const;
  /// The positions of a chunk that this rank has by itself.
  [[nodiscard]] Range chunk(int chunk, std::int64_t sequence) const;
  /// The chunks of `keys`, a place in the ring, that queries of `queries` see: neighbours, and
  /// perhaps none. `window`: positions that a query sees, its own included; 0: all up to it.
  [[nodiscard]] Range chunks_seen(int queries,
                                  int keys,
                                  std::int64_t sequence,
                                  std::int64_t window) const;
  friend bool operator==(const ContextShape&, const ContextShape&) = default;
};

/// Whether a query of `queries` sees a key of `keys`, both positions of one document.
bool sees(const Range& queries, const Range& keys, std::int64_t window);

}  // namespace dstrain
