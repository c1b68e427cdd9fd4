// WaitClock: a recorder that adds up how long the thread that computes waits for other ranks, and
// passes everything on to another recorder, if there is one.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "engine/comm/activity.h"

namespace dstrain {

class WaitClock final : public ActivityRecorder {
 public:
  /// Made by the thread that computes. `next`, which may be nullptr, must outlive it.
  explicit WaitClock(ActivityRecorder* next) : next_(next) {}

  /// Seconds of waits that have ended since this was last called. To be called by the thread that
  /// computes. A GPU carries collectives beside that thread, which then waits for the GPU alone:
  /// not counted.
  double take_seconds();

  int add_group(const std::string& name) override;
  void begin_collective(int group, Op op, Purpose purpose) noexcept override;
  void end_collective(int group) noexcept override;
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  void begin_phase(RunPhase phase) noexcept override;
  void finish_step(std::int64_t step) noexcept override;
  void set_comparable(int number) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  void enter() noexcept;
  void leave() noexcept;
  [[nodiscard]] bool computes() const { return std::this_thread::get_id() == computing_thread_; }

  ActivityRecorder* const next_;
  const std::thread::id computing_thread_ = std::this_thread::get_id();
  int waits_ = 0;  ///< nested
  Clock::time_point began_{};
  Clock::duration waited_{};
};

}  // namespace dstrain
