// WaitClock: a recorder that adds up how long the thread that computes waits for other ranks, by
// the group that it waits for, and passes everything on to another recorder, if there is one.
//
// It also adds up, over all threads, for whose bytes they wait.
//
// Where that thread waits for a stream that carries collectives beside it, the wait is for the
// group whose collective began last there; before there was one, for no known group.
#pragma once

#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/activity.h"

namespace dstrain {

class WaitClock final : public ActivityRecorder {
 public:
  /// Made by the thread that computes, in a job of so many ranks. `next`, which may be nullptr,
  /// must outlive it.
  explicit WaitClock(ActivityRecorder* next, int ranks)
      : next_(next), for_bytes_(static_cast<std::size_t>(ranks)) {}

  /// The names of the groups, in the order of take_seconds().
  [[nodiscard]] const std::vector<std::string>& groups() const { return names_; }
  /// Seconds, by group, of waits that have ended since this was last called, and behind them those
  /// for no known group; valid until it is called again. To be called by the thread that computes.
  /// A GPU carries collectives beside that thread, which then waits for the GPU alone: not counted.
  std::span<const double> take_seconds();

  /// The rank whose bytes were waited for longest since this was last called; seconds of all
  /// threads.
  struct SlowPeer {
    int rank = -1;  ///< none
    double seconds = 0.0;
  };
  SlowPeer take_slow_peer();

  int add_group(const std::string& name) override;
  void begin_collective(int group, Op op, Purpose purpose) noexcept override;
  void end_collective(int group) noexcept override;
  void add_transfer_wait(int world_rank, double seconds) noexcept override;
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  void begin_phase(RunPhase phase) noexcept override;
  void finish_step(std::int64_t step) noexcept override;
  void set_comparable(int number) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  void enter(int group) noexcept;
  void leave() noexcept;
  [[nodiscard]] bool computes() const { return std::this_thread::get_id() == computing_thread_; }

  ActivityRecorder* const next_;
  const std::thread::id computing_thread_ = std::this_thread::get_id();
  std::vector<std::string> names_;
  std::vector<int> next_numbers_;      ///< of the groups, as `next` knows them
  std::atomic<int> beside_group_{-1};  ///< of the collective that began last beside that thread
  int waits_ = 0;                      ///< nested
  int group_ = -1;                     ///< that they are for; -1: for what is beside
  Clock::time_point began_{};
  std::vector<double> waited_{0.0};  ///< as take_seconds() returns them
  std::vector<double> taken_{0.0};
  std::vector<std::atomic<double>> for_bytes_;  ///< seconds, by rank of the world
};

}  // namespace dstrain
