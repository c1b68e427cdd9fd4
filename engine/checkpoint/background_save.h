// BackgroundSave: one save at a time, written by a thread of its own while the caller computes.
//
// The ranks' threads run CheckpointStore::save as it is, over a group that nobody else uses: its
// collectives cannot meet those of training, and their order is that of the saves. A rank may see
// its own part ended before others do; a caller that wants all ranks to act alike asks all of them
// first.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <span>

#include "engine/checkpoint/checkpoint_store.h"

namespace dstrain {

class BackgroundSave {
 public:
  /// Both must outlive it. Only this object may use `group`.
  BackgroundSave(CheckpointStore& store, Communicator& group);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  /// Lets the save under way end; if nobody collected it and it failed, the log says so.
  ~BackgroundSave();

  /// Starts a save; the one before must have been collected. `tensors` and their memory must stay
  /// as they are until this one is.
  void start(TrainingState state, std::span<const CheckpointTensor> tensors, std::int64_t keep);
  [[nodiscard]] bool under_way() const { return ended_.valid(); }
  /// The step of the save under way, and whether this rank's part has ended, well or not.
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] bool has_ended() const;
  /// Waits for the end of the save under way; rethrows its failure.
  void collect();

 private:
  CheckpointStore& store_;
  Communicator& group_;
  std::int64_t step_ = 0;
  std::future<void> ended_;  // last: its end is waited for before the rest goes
};

}  // namespace dstrain
