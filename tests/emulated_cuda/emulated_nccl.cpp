#include "tests/emulated_cuda/emulated_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/comm/nccl.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"
#include "tests/emulated_cuda/nccl_meeting.h"

namespace dstrain::emulated {
namespace {

struct Member : Place {
  std::uint64_t rounds = 0;
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> calls_block{false};
  // The call that is in progress: how often its state must be queried, what else it waits for, and
  // what it then does.
  int questions = 0;
  std::function<bool()> may_end;
  std::function<void()> deferred;
};

}  // namespace
}  // namespace dstrain::emulated

struct ncclComm {
  std::shared_ptr<dstrain::emulated::Member> member;
};

namespace dstrain::emulated {
namespace {

struct World {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<Meeting>> meetings;
  std::map<ncclComm_t, Member*> live;
  std::uint64_t last_id = 0;
};

World& world() {
  static World& only = *new World;
  return only;
}

thread_local std::vector<Message> grouped;
thread_local ncclComm_t grouped_comm = nullptr;
thread_local cudaStream_t grouped_stream = nullptr;
thread_local int group_depth = 0;

Member& member_of(ncclComm_t comm, const char* call) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().live.find(comm);
  if (found == world().live.end()) {
    std::fprintf(stderr, "emulated NCCL: %s of a communicator that is no more\n", call);
    std::abort();
  }
  return *found->second;
}

/// In progress, until it was asked after a few times and `may_end`; then it does `deferred`.
ncclResult_t begin(Member& member,
                   const char* call,
                   std::function<bool()> may_end,
                   std::function<void()> deferred) {
  if (member.questions > 0) {
    std::fprintf(stderr, "emulated NCCL: %s while another call is in progress\n", call);
    std::abort();
  }
  constexpr int kQuestions = 3;
  member.questions = kQuestions;
  member.may_end = std::move(may_end);
  member.deferred = std::move(deferred);
  return ncclInProgress;
}

bool always() {
  return true;
}

ncclResult_t collective(ncclComm_t comm, const Part& part, cudaStream_t stream) {
  Member& member = member_of(comm, "a collective");
  check_on_device("NCCL", part.send, stream_of(stream).device());
  check_on_device("NCCL", part.receive, stream_of(stream).device());
  const std::shared_ptr<Member> shared = comm->member;
  const std::uint64_t number = member.rounds++;
  const auto meeting = member.meeting;
  if (member.calls_block) {
    std::unique_lock lock(meeting->mutex);
    meeting->changed.wait(lock, [&] { return shared->aborted; });
    return ncclSystemError;
  }
  if (number == 0) {
    const std::lock_guard lock(meeting->mutex);
    ++meeting->called;
  }
  const auto connected = [meeting] {
    const std::lock_guard lock(meeting->mutex);
    return meeting->called >= meeting->size;
  };
  return begin(member, "a collective", number == 0 ? std::function<bool()>(connected) : always,
               [=] { stream_of(stream).enqueue([=] { take_part(*shared, number, part); }); });
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* state) {
  Member& member = member_of(comm, "ncclCommGetAsyncError");
  *state = member.error;
  if (*state == ncclSuccess && member.questions > 0) {
    *state = ncclInProgress;
    if (member.questions > 1) {
      --member.questions;
    } else if (member.may_end()) {
      member.deferred();
      member.questions = 0;
      *state = ncclSuccess;
    }
  }
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) {
    return ncclInvalidArgument;
  }
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  auto member = std::make_shared<Member>();
  {
    const std::lock_guard lock(world().mutex);
    std::weak_ptr<Meeting>& known = world().meetings[number];
    member->meeting = known.lock();
    if (member->meeting == nullptr) {
      known = member->meeting = std::make_shared<Meeting>();
      member->meeting->size = size;
    }
    member->rank = rank;
    *comm = new ncclComm{member};
    world().live[*comm] = member.get();
  }
  const std::lock_guard lock(member->meeting->mutex);
  ++member->meeting->joined;
  if (!member->meeting->devices.insert(current_device()).second) {
    member->error = ncclInvalidUsage;
  }
  const auto all_joined = [meeting = member->meeting] {
    const std::lock_guard inner(meeting->mutex);
    return meeting->joined == meeting->size;
  };
  return begin(*member, "ncclCommInitRankConfig", all_joined, [] {});
}

void forget(ncclComm_t comm) {
  const std::lock_guard lock(world().mutex);
  world().live.erase(comm);
  delete comm;
}

ncclResult_t abort_comm(ncclComm_t comm) {
  Member& member = member_of(comm, "ncclCommAbort");
  {
    const std::lock_guard lock(member.meeting->mutex);
    member.aborted = true;
    member.meeting->changed.notify_all();
  }
  forget(comm);
  return ncclSuccess;
}

ncclResult_t finalize(ncclComm_t comm) {
  Member& member = member_of(comm, "ncclCommFinalize");
  const auto meeting = member.meeting;
  const std::lock_guard lock(meeting->mutex);
  ++meeting->finalized;
  return begin(
      member, "ncclCommFinalize",
      [meeting] {
        const std::lock_guard inner(meeting->mutex);
        return meeting->finalized == meeting->size;
      },
      [] {});
}

ncclResult_t group_end() {
  if (--group_depth > 0 || grouped.empty()) {
    return ncclSuccess;
  }
  Member& member = member_of(grouped_comm, "ncclGroupEnd");
  const auto messages = std::exchange(grouped, {});
  const auto meeting = member.meeting;
  {
    const std::lock_guard lock(meeting->mutex);
    for (const Message& message : messages) {
      meeting->calls.insert({member.rank, message.peer});
    }
  }
  const auto connected = [meeting, rank = member.rank, messages] {
    const std::lock_guard lock(meeting->mutex);
    return std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
      return meeting->calls.count({message.peer, rank}) != 0;
    });
  };
  return begin(member, "ncclGroupEnd", connected,
               [shared = grouped_comm->member, stream = grouped_stream, messages] {
                 stream_of(stream).enqueue([=] { transfer(*shared, messages); });
               });
}

ncclResult_t add_message(Message message, ncclComm_t comm, cudaStream_t stream) {
  Member& member = member_of(comm, "ncclSend or ncclRecv");
  if (group_depth == 0 || message.peer < 0 || message.peer >= member.meeting->size) {
    return ncclInvalidArgument;
  }
  check_on_device("NCCL", message.data, stream_of(stream).device());
  grouped.push_back(message);
  grouped_comm = comm;
  grouped_stream = stream;
  return grouped.size() % 2 == 0 ? ncclInProgress : ncclSuccess;  // either may be
}

}  // namespace

int num_live_nccl_comms() {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(world().live.size());
}

void set_nccl_async_error(int rank, ncclResult_t error) {
  const std::lock_guard lock(world().mutex);
  for (const auto& [comm, member] : world().live) {
    if (member->rank == rank) member->error = error;
  }
}

void block_nccl_calls(int rank) {
  const std::lock_guard lock(world().mutex);
  for (const auto& [comm, member] : world().live) {
    if (member->rank == rank) member->calls_block = true;
  }
}

}  // namespace dstrain::emulated

namespace dstrain {

using namespace emulated;

Nccl open_nccl() {
  Nccl nccl{};
  nccl.get_version = [](int* version) {
    *version = NCCL_VERSION(2, 18, 1);
    return ncclSuccess;
  };
  nccl.get_unique_id = [](ncclUniqueId* id) {
    const std::lock_guard lock(world().mutex);
    const std::uint64_t number = ++world().last_id;
    std::memcpy(id->internal, &number, sizeof(number));
    return ncclSuccess;
  };
  nccl.error_string = [](ncclResult_t status) {
    return status == ncclRemoteError ? "remote process exited" : "refused by the emulation";
  };
  nccl.last_error = [](ncclComm_t /*comm*/) { return "said by the emulation"; };
  nccl.comm_init_rank_config = init;
  nccl.comm_get_async_error = get_async_error;
  nccl.comm_finalize = finalize;
  nccl.comm_destroy = [](ncclComm_t comm) {
    (void)member_of(comm, "ncclCommDestroy");
    forget(comm);
    return ncclSuccess;
  };
  nccl.comm_abort = abort_comm;
  nccl.all_reduce = [](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return collective(comm, {Kind::kAllReduce, send, receive, count, type, op, 0}, stream);
  };
  nccl.reduce_scatter = [](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const auto size = static_cast<std::size_t>(member_of(comm, "ncclReduceScatter").meeting->size);
    return collective(comm, {Kind::kReduceScatter, send, receive, count * size, type, op, 0},
                      stream);
  };
  nccl.all_gather = [](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t stream) {
    return collective(comm, {Kind::kAllGather, send, receive, count, type, ncclSum, 0}, stream);
  };
  nccl.broadcast = [](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                      int root, ncclComm_t comm, cudaStream_t stream) {
    return collective(comm, {Kind::kBroadcast, send, receive, count, type, ncclSum, root}, stream);
  };
  nccl.send = [](const void* data, std::size_t count, ncclDataType_t type, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
    return add_message({const_cast<void*>(data), count * size_of(type), peer, true}, comm, stream);
  };
  nccl.receive = [](void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                    cudaStream_t stream) {
    return add_message({data, count * size_of(type), peer, false}, comm, stream);
  };
  nccl.group_start = [] {
    ++group_depth;
    return ncclSuccess;
  };
  nccl.group_end = group_end;
  return nccl;
}

}  // namespace dstrain
