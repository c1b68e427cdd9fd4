// Communicator: the collectives of one group of ranks, enqueued on a stream.
//
// A group of one is legal and free. A call returns before it is complete; order and completion
// are the stream's. Failure is PeerLost or Timeout, thrown by the stream's next wait, and final:
// the group is of no use afterwards. All members call the same collectives in the same order, on
// one stream at a time; groups are independent of each other. `exchange` concerns only the ranks
// that it names. Members whose calls do not match get InternalError, which names both calls; over
// NCCL, which compares nothing, only at the deadline.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/comm/collective.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// A peer closed its connection or died. The rank that notices exits with 14 (cmd/exit_codes.h), by
/// which the launcher knows that another one is to blame.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A wait passed its deadline.
class Timeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One message of an exchange: either sent or received.
struct P2p {
  enum class Kind : std::uint8_t { kSend, kReceive };
  Kind kind = Kind::kSend;
  int peer = 0;   ///< rank within the group
  Tensor tensor;  ///< read for kSend, written for kReceive
};

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The name in messages: "data-parallel".
  [[nodiscard]] virtual const std::string& name() const = 0;

  /// dtypes: f32, bf16, f16, f64, i32. Elements are combined in rank order, ((r0 + r1) + r2) + …,
  /// bf16 and f16 in f32 and rounded once, f16 beyond 65504 to infinity; kMax keeps a NaN. The same
  /// bits on every member. Over NCCL only the last holds: it adds in an order of its own and rounds
  /// at every addition, and its maximum may lose a NaN, so do not look for one by kMax.
  virtual void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) = 0;
  /// in.numel() == size() · out.numel(); rank r gets the r-th slice of the reduction. `out` may be
  /// this rank's slice of `in`; otherwise they must not overlap.
  virtual void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) = 0;
  /// out.numel() == size() · in.numel(). `in` may be this rank's slice of `out`.
  virtual void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) = 0;
  virtual void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) = 0;
  /// Every member gives every member a part, and keeps one: `in` is the parts for members 0, 1, …
  /// back to back, `sent[r]` elements for member r; `out` gets the parts from members 0, 1, …
  /// likewise, `received[r]` elements from member r. Parts may be empty and of any size, as long
  /// as sent[r] here is received[rank()] on member r. `in` and `out` must not overlap; the counts
  /// may go when the call returns. Any dtype.
  virtual void all_to_all(ConstTensor in,
                          std::span<const std::int64_t> sent,
                          Tensor out,
                          std::span<const std::int64_t> received,
                          Purpose purpose,
                          Stream& stream) = 0;
  /// All messages of one moment in one call, so that no order of sends and receives can deadlock.
  /// Between two ranks the i-th send of one matches the i-th receive of the other.
  virtual void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) = 0;
  /// Blocks the host until every member has arrived. Not ordered with streams: synchronize first.
  virtual void barrier() = 0;
  /// Makes every pending and later call of every member fail with PeerLost. May be called from any
  /// thread.
  virtual void abort() noexcept = 0;
};

}  // namespace dstrain
