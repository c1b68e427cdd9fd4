// LocalGroup: the place where the members of one group meet, when ranks are threads of one process.
//
// A collective is two meetings with work between them: at the first every member has published its
// buffers, so each may read all of them; after the second nobody reads them any more. Used by
// local_communicator.cpp only. Tests run on it, so it is strict rather than fast: sends complete
// only when received, mismatched calls are named, and a thread that never comes is a Timeout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/communicator.h"

namespace dstrain {

class LocalGroup {
 public:
  struct Buffers {
    const void* in = nullptr;
    void* out = nullptr;
  };

  LocalGroup(std::string name, std::vector<int> members, std::chrono::milliseconds timeout);

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }

  /// Each member joins once, and leaves when its communicator is destroyed.
  void join(int rank);
  void leave(int rank) noexcept;
  void abort() noexcept;

  /// Meets, does this member's share of the work, meets again. `work` sees the buffers of all
  /// members, by rank, and must not block.
  void collective(int rank,
                  const Call& call,
                  Buffers buffers,
                  const std::function<void(std::span<const Buffers>)>& work);
  /// `call`: an exchange, or the all_to_all that the messages are of.
  void exchange(int rank, std::span<const P2p> messages, const Call& call);

 private:
  struct Parcel {
    Tensor tensor;
    bool taken = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void meet(int rank, const Call& call, Lock& lock);
  void depart(Lock& lock);
  void take(int rank, const P2p& receive, const std::string& what, Lock& lock);
  [[noreturn]] void fail(std::exception_ptr failure);
  void throw_if_failed() const;
  [[nodiscard]] std::string who(int rank, const std::string& what) const;
  [[nodiscard]] std::string absent(const std::vector<bool>& present) const;
  std::deque<Parcel*>& mailbox(int from, int to) {
    return mailboxes_[static_cast<std::size_t>(from * size() + to)];
  }

  const std::string name_;
  const std::vector<int> members_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;  ///< once set, every call throws it
  std::vector<bool> joined_;
  std::vector<bool> left_;
  // The meeting that is forming.
  std::vector<bool> arrived_;
  std::vector<Call> calls_;
  std::vector<Buffers> buffers_;
  std::uint64_t meetings_ = 0;
  // The departure from it.
  int departing_ = 0;
  std::uint64_t departures_ = 0;
  std::vector<std::deque<Parcel*>> mailboxes_;  ///< [from · size + to], oldest first
};

}  // namespace dstrain
