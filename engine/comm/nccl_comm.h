// NcclComm: one ncclComm_t, which never blocks the host in a call of NCCL's: calls return at once
// and are polled. So any thread may end it, at any time, and no other is left in a call.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "engine/comm/block_signals.h"
#include "engine/comm/nccl.h"
#include "engine/comm/nccl_group.h"
#include "engine/comm/nccl_notices.h"

namespace dstrain {

class NcclComm {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Connects to the other members, on the current device. Throws as make_nccl_communicator.
  NcclComm(Nccl nccl,
           const NcclGroup& group,
           NcclNotices& notices,
           std::chrono::milliseconds connect_timeout);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  /// Aborts, unless leave() was called.
  ~NcclComm();

  [[nodiscard]] const Nccl& nccl() const { return nccl_; }

  /// Has `calls(comm)` give NCCL work for streams, and returns when it is on them; the first time
  /// that NCCL needs a connection, that is after the peer has come. One thread at a time. Returns
  /// something other than ncclSuccess where NCCL refused or the communicator was aborted meanwhile.
  template <typename Calls>
  [[nodiscard]] ncclResult_t enqueue(Calls&& calls) {
    const ncclResult_t status = begin(calls);
    return status == ncclInProgress ? wait({}) : status;
  }

  /// The error that NCCL's own threads have met with; ncclInvalidUsage after an abort;
  /// ncclInProgress also while another thread is in a call.
  [[nodiscard]] ncclResult_t async_error();

  /// Ends NCCL's kernels, so that streams continue, without results. Later calls do nothing. A call
  /// that does not come back, as where CUDA's queue is full behind a kernel that waits, is ended by
  /// it too: it is waited for briefly, then the communicator is aborted while it runs.
  void abort() noexcept;
  /// Leaves together with the other members, once everything is done; where they do not come in
  /// time, or have given up, aborts and returns false.
  [[nodiscard]] bool leave(NcclNotices& notices, std::chrono::milliseconds timeout) noexcept;

 private:
  void connect(const NcclGroup& group, NcclNotices& notices, std::chrono::milliseconds timeout);
  [[noreturn]] static void fail_to_connect(const std::string& where,
                                           NcclNotices& notices,
                                           std::chrono::milliseconds timeout);
  [[nodiscard]] ncclUniqueId agree_on_id(const NcclGroup& group,
                                         NcclNotices& notices,
                                         std::chrono::milliseconds timeout) const;
  /// Says how long to wait in a call that concerns all members, and what else ends the wait.
  struct Patience {
    TimePoint deadline = TimePoint::max();
    NcclNotices* notices = nullptr;  ///< looked into now and then
  };
  template <typename Calls>
  [[nodiscard]] ncclResult_t begin(Calls&& calls) {
    const BlockSignals block;  // NCCL may start threads
    const std::lock_guard lock(mutex_);
    const ncclComm_t comm = comm_;
    return comm == nullptr ? ncclInvalidUsage : calls(comm);
  }
  /// Waits until what was begun is no longer in progress, or patience ends; then returns
  /// ncclInProgress.
  [[nodiscard]] ncclResult_t wait(const Patience& patience);

  const Nccl nccl_;
  std::timed_mutex mutex_;  // a call at a time; none after the last
  std::atomic<ncclComm_t> comm_{nullptr};
};

}  // namespace dstrain
