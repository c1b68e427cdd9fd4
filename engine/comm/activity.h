// ActivityRecorder: a rank reports to it what it is doing, so that an observer outside can say so
// even of a rank that hangs. Where nobody listens, nullptr is passed, at no cost.
//
// Called before and after every collective, so an implementation neither allocates nor waits nor
// calls the kernel (reading a clock is no call).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "kernels/core/device.h"

namespace dstrain {

/// The phases of a rank's life, which begins with the first.
enum class RunPhase : std::uint8_t { kStarting, kTraining, kEvaluating, kSaving, kEnding };

class ActivityRecorder {
 public:
  ActivityRecorder() = default;
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;
  virtual ~ActivityRecorder() = default;

  /// Adds a group that this rank is in, before its first collective; the number returned stands for
  /// it below.
  virtual int add_group(const std::string& name) = 0;
  /// Called from the thread that carries the collective, or that watches over one that a GPU
  /// carries. One at a time in each group.
  virtual void begin_collective(int group, Op op, Purpose purpose) noexcept = 0;
  virtual void end_collective(int group) noexcept = 0;

  /// Called at the end of a collective, in its thread: how long it waited for bytes to come from
  /// `world_rank`, or to leave for it, while that one took part already. Few want to know.
  virtual void add_transfer_wait(int /*world_rank*/, double /*seconds*/) noexcept {}

  /// A thread waits for a side stream, that is for what others send. Counts only from the thread
  /// that computes, which is the one that made the recorder.
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;

  // The following are called from the thread that computes.

  virtual void begin_phase(RunPhase phase) noexcept = 0;
  /// `step` of the run is done. What passes until the next one ends belongs to that one, as far as
  /// it is in RunPhase::kTraining.
  virtual void finish_step(std::int64_t step) noexcept = 0;
  /// Ranks with the same number do the same work: a pipeline stage.
  virtual void set_comparable(int number) noexcept = 0;
};

/// A collective, for as long as it exists.
class CollectiveScope {
 public:
  CollectiveScope(ActivityRecorder* recorder, int group, Op op, Purpose purpose)
      : recorder_(recorder), group_(group) {
    if (recorder_ != nullptr) recorder_->begin_collective(group, op, purpose);
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;
  ~CollectiveScope() {
    if (recorder_ != nullptr) recorder_->end_collective(group_);
  }

 private:
  ActivityRecorder* const recorder_;
  const int group_;
};

/// Returns `stream` with its waits reported to `recorder`; `stream` itself if that is nullptr. The
/// recorder must outlive it.
std::unique_ptr<Stream> tell_waits(std::unique_ptr<Stream> stream, ActivityRecorder* recorder);

}  // namespace dstrain
