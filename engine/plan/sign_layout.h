// SignLayout: how what a rank has of every tensor travels as signs: eight numbers a byte, and one
// scale (kernels/math/sign_code.h). Each data-parallel rank is the server of a chunk of every
// tensor. What goes to a server, and what it answers, has one form:
//
//   scale of tensor 0 │ of tensor 1 │ … │ signs of its chunk of tensor 0 │ of tensor 1 │ …
//
//   ⇄ all-to-all    to server r: my scales, my signs of the chunks of r
//   servers         add up what all ranks' signs stand for, and code the mean in turn
//   ⇠ all-gather    from server r: its scales, its signs
//
// (Tang et al. 2021, arXiv 2102.02888, section 6.) A tensor is coded alike whatever its neighbours
// are, so ranks that hold copies of it (tensor parallelism) get the same, and so do all layouts of
// a pipeline. On the wire, of Ψ numbers: Ψ/8 bytes a rank each way, 1/32 of what summing them in
// f32 takes, 1/16 of bf16, and the scales.
//
// DeepSpeed 0.19 pads every tensor, or the row of all of them, to a multiple of n · lcm(n, 8) for n
// ranks, and counts the padding in the scale, which is then too small. Here a chunk is whole bytes
// and only numbers count; where nothing is to be padded the two agree.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/shard_map.h"

namespace dstrain {

class SignLayout {
 public:
  /// One tensor.
  struct Row {
    int unit = 0;
    Range range;               ///< of its elements in the unit's flat buffer
    std::int64_t chunk = 0;    ///< elements that each rank serves, but the last ones; whole bytes
    std::int64_t scale = 0;    ///< its place in a message, bytes
    std::int64_t signs = 0;    ///< likewise
    Range served;              ///< by this rank, in the unit's flat buffer; may be empty
    std::int64_t serving = 0;  ///< where what it keeps of them begins, of what it keeps of the unit
  };

  /// For the tensors of all units, which `ranks` ranks share, this one being `rank` among them.
  SignLayout(const ShardMap& shards, int ranks, int rank);

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  /// The bytes of a message, a multiple of 16.
  [[nodiscard]] std::int64_t message_bytes() const { return message_bytes_; }
  /// Bytes that one way takes in the memory of a rank: a message for, or from, each rank.
  [[nodiscard]] std::int64_t bytes() const { return ranks_ * message_bytes_; }
  /// The elements of a unit that this rank keeps as a server.
  [[nodiscard]] std::int64_t serving(int unit) const {
    return serving_.at(static_cast<std::size_t>(unit));
  }

 private:
  int ranks_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> serving_;  // by unit
  std::int64_t message_bytes_ = 0;
};

}  // namespace dstrain
