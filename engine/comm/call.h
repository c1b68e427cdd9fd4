// Call: what one member asks of its group, small enough to travel ahead of the data. Two members
// whose calls differ have a bug, and the sentence about it names both calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace dstrain {

struct Call {
  Op op = Op::kBarrier;
  Purpose purpose = Purpose::kControl;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;  ///< only for all_reduce and reduce_scatter
  std::int32_t root = -1;            ///< only for broadcast
  /// Size of the whole buffer; for an all_gather, of its output. An all_to_all's parts differ from
  /// member to member: a call for one part has that part's size, the call for all of them 0.
  std::int64_t elements = 0;

  [[nodiscard]] std::int64_t bytes() const { return elements * size_of(dtype); }
  /// "all_reduce(f32[1024], sum, gradient)"
  [[nodiscard]] std::string describe() const;

  friend bool operator==(const Call&, const Call&) = default;
};

/// Make the calls, after checking what one member can check alone: dtypes and sizes.
Call all_reduce_call(ConstTensor inout, ReduceOp reduce, Purpose purpose);
Call reduce_scatter_call(
    ConstTensor in, ConstTensor out, ReduceOp reduce, Purpose purpose, int group_size);
Call all_gather_call(ConstTensor in, ConstTensor out, Purpose purpose, int group_size);
Call broadcast_call(ConstTensor inout, int root, Purpose purpose, int group_size);

/// An all_to_all as the messages that it consists of.
struct AllToAllParts {
  Call call;
  ConstTensor kept_in;  ///< the part of this rank for itself
  Tensor kept_out;
  /// One message each way with every other member, empty ones too, so that members that disagree
  /// about a part find out.
  std::vector<P2p> messages;
};
AllToAllParts all_to_all_parts(ConstTensor in,
                               std::span<const std::int64_t> sent,
                               Tensor out,
                               std::span<const std::int64_t> received,
                               Purpose purpose,
                               const Communicator& group);

}  // namespace dstrain
