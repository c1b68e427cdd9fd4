// What emulated NCCL's kernels do on their streams: the members of a communicator meet, and the
// last to arrive does the work for all. A waiting member continues early only when its own
// communicator is aborted.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <nccl.h>

namespace dstrain::emulated {

std::size_t size_of(ncclDataType_t type);

enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };

/// What a rank contributes to a collective; `count` is that of its `send`.
struct Part {
  Kind kind = Kind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int root = 0;

  [[nodiscard]] bool matches(const Part& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op &&
           root == other.root;
  }
};

struct Round {
  std::map<int, Part> parts;  // by rank
  bool done = false;
};

struct Message {
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool is_send = false;
};

/// A send that waits for its receiver.
struct Posted {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
};

/// The state that the members of one communicator share.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  std::set<int> devices;
  int called = 0;                       // the first collective
  std::set<std::pair<int, int>> calls;  // who exchanges with whom, as far as called
  int finalized = 0;
  std::map<std::uint64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Posted>>> posted;  // from, to
};

/// A member, whose work on a stream may outlive its communicator.
struct Place {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  bool aborted = false;  // under the meeting's mutex
};

/// Takes part in the `number`-th collective. Calls that do not match never end.
void take_part(Place& place, std::uint64_t number, const Part& part);
/// Posts everything before it waits for anything. Sizes that differ never end.
void transfer(Place& place, const std::vector<Message>& messages);

}  // namespace dstrain::emulated
