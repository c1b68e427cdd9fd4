// AcrossHosts: collectives of a group that has several members on a host. What one host has to tell
// another crosses the network once, and not once for each member.
//
// Reductions go from host to host, in lanes: lane l is the l-th member of every host, and carries a
// part of the buffer. Each host adds its members, in rank order, to what the host before it has
// sent, so the bits are those of any other way:
//
//   host 0             host 1                   host 2
//   ((r0 + r1)    →    + r2) + r3          →    + r4) + r5    = the result
//   the result    ←    the result          ←    the result      (an all-reduce; in a
//                                                                reduce-scatter, to its member)
//
// A host sends what it has added up, in f32 for bf16 and f16, while the next segment is added and
// results come the other way. That takes as long as the network needs for one buffer each way, or
// two of bf16, and a few segments for each host of the chain.
//
// An all-gather sends a member's slice to one member of every other host, who hands it on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/host_layout.h"
#include "engine/comm/peer_mesh.h"

namespace dstrain {

class AcrossHosts {
 public:
  /// For a connected mesh, which must outlive it.
  explicit AcrossHosts(PeerMesh& mesh);

  /// The memory that one takes on each of `members`, wherever they are.
  [[nodiscard]] static std::int64_t buffer_bytes(int members);

  /// Whether less crosses the network in this way than if every member sent to every other. All
  /// members of a group get the same answers.
  [[nodiscard]] bool suits_all_reduce(DType dtype) const;
  [[nodiscard]] bool suits_reduce_scatter(DType dtype) const;
  [[nodiscard]] bool suits_all_gather() const;

  /// As Communicator's, of calls that suit.
  void all_reduce(const Call& call, Tensor inout);
  void reduce_scatter(const Call& call, ConstTensor in, Tensor out);
  /// `out` has this member's slice already.
  void all_gather(const Call& call, Tensor out);

 private:
  class Reduction;

  /// The product of a host's members and those elsewhere, where it is largest.
  [[nodiscard]] std::int64_t most_sent_by_all() const;

  PeerMesh& mesh_;
  const HostLayout& layout_;
  const int lanes_;
  std::vector<std::byte> scratch_;  ///< segments on their way to another host
};

}  // namespace dstrain
