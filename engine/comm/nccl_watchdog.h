// NcclWatchdog: a thread beside a communicator that knows which of its collectives are under way,
// and ends the group when one does not end, when NCCL reports an error, when another member gave
// up, or when the device did.
//
//   stream    … | event "ready" | NCCL's kernel | event "done" | …
//   watchdog      asks both, a few times a second; the age of a collective counts from the first,
//                 as what is queued behind hours of work has not waited for anybody
//
// It alone tells the ActivityRecorder, so that beginnings and ends are in order: late by one look,
// which does not matter when looking for a rank that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "engine/comm/call.h"
#include "engine/comm/nccl_comm.h"
#include "engine/comm/nccl_group.h"
#include "engine/comm/nccl_notices.h"
#include "kernels/cuda/cuda_device.h"

namespace dstrain {

/// A CUDA event, on the device that is current when it is made.
class NcclEvent {
 public:
  NcclEvent();
  NcclEvent(const NcclEvent&) = delete;
  NcclEvent& operator=(const NcclEvent&) = delete;
  ~NcclEvent();
  void record(cudaStream_t stream);
  [[nodiscard]] bool has_passed() const;

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclWatchdog {
 public:
  /// All must outlive it.
  NcclWatchdog(NcclComm& comm,
               NcclNotices& notices,
               CudaDevice& device,
               const NcclGroup& group,
               const NcclOptions& options);
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;
  /// Stops the thread.
  ~NcclWatchdog();

  struct Collective {
    Call call;
    std::uint64_t number = 0;
    NcclEvent ready;
    NcclEvent done;
    bool is_enqueued = false;                          ///< `done` is recorded
    std::chrono::steady_clock::time_point since{};     ///< it could begin; zero: not yet
    std::chrono::steady_clock::time_point asked_at{};  ///< the other members; zero: not yet
  };

  /// Called around the call that enqueues a collective. The first throws what ended the group.
  Collective& begin(const Call& call, cudaStream_t stream);
  void finish(Collective& collective, cudaStream_t stream);
  /// Called where that call was refused with `status`: ends the group, and throws what ended it.
  [[noreturn]] void refuse(const Collective& collective, ncclResult_t status);

  /// Ends the group. May be called from any thread.
  void abort() noexcept;
  /// Lets the thread end. True if nothing has ended the group.
  bool stop() noexcept;
  /// Valid after stop(): whether no collective is under way.
  [[nodiscard]] bool is_idle() const { return pending_.empty(); }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Lock = std::unique_lock<std::mutex>;

  void watch();
  void retire_done();
  /// The reason to end the group now, or nullptr.
  [[nodiscard]] std::exception_ptr find_trouble(Lock& lock);
  void take_back_notice(Lock& lock);
  [[nodiscard]] std::exception_ptr ask_others(Lock& lock, Collective& oldest);
  void end_group(Lock& lock, std::exception_ptr trouble);
  /// Whether the oldest collective under way could begin.
  [[nodiscard]] bool has_begun() const {
    return !pending_.empty() && pending_.front().since != TimePoint{};
  }
  [[nodiscard]] std::string describe_oldest() const;
  [[nodiscard]] std::string describe(const Collective& collective) const;
  [[nodiscard]] std::exception_ptr trouble_of(ncclResult_t status, const std::string& where) const;
  void tell_begin(const Call& call) noexcept;
  void tell_end() noexcept;

  NcclComm& comm_;
  NcclNotices& notices_;
  CudaDevice& device_;
  const NcclGroup group_;
  const std::chrono::milliseconds timeout_;
  ActivityRecorder* const activity_;
  const int activity_group_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::list<Collective> pending_;  // in the stream's order; the thread alone takes from it
  std::list<Collective> spare_;    // their events are used again
  std::uint64_t number_ = 0;
  bool has_told_ = false;  // the others, what this rank waits in
  bool stopping_ = false;
  bool abort_requested_ = false;
  std::exception_ptr refusal_;  // a call's, which the thread takes up
  std::exception_ptr trouble_;  // what ended the group
  std::jthread thread_;         // last: it uses the others
};

}  // namespace dstrain
