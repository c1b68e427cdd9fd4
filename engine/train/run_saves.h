// RunSaves: how a run's state goes to disk, by which thread, and what becomes of the run where it
// does not get there (checkpoint.async, checkpoint.on_save_failure).
//
//   step        k          k+1        k+2        k+3
//   training    ▓▓▓▓ copy  ▓▓▓▓▓▓▓▓▓  ▓▓▓▓▓▓▓▓▓  ▓▓▓▓      copy: the rank's slice, into host memory
//   background       └─ write, fsync, agree, commit ┘
//   agreed on                                 ┘ after the first step by which it ended on all ranks
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/checkpoint/background_save.h"
#include "engine/train/engine.h"
#include "engine/train/state_snapshot.h"

namespace dstrain {

struct CheckpointConfig;

class RunSaves {
 public:
  /// `resumed_step`: of the checkpoint that the run began from; -1: of none.
  RunSaves(const CheckpointConfig& config,
           Engine& engine,
           CheckpointStore& checkpoints,
           std::int64_t resumed_step);

  /// Step of the newest checkpoint; -1: there is none yet.
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }
  /// Saves that failed and did not stop the run.
  [[nodiscard]] std::int64_t failed_saves() const { return failed_saves_; }
  /// A save is being written beside training.
  [[nodiscard]] bool under_way() const { return background_ && background_->under_way(); }
  /// This rank's part of it has ended.
  [[nodiscard]] bool has_ended() const { return background_ && background_->has_ended(); }

  /// Collective, all at the same step. Takes note of how the save under way ended; waits for that.
  /// Throws StorageError if it failed and failures stop the run.
  void finish();
  /// Collective. One that is due, after the one under way; throws as finish().
  void save(const TrainingState& state);
  /// Collective. The run's last: done once it returns. Any failure of it throws.
  void save_last(const TrainingState& state);

  /// Seconds that training stood still for saves since this was last asked.
  double take_pause_seconds();

 private:
  void attempt(std::int64_t step, const std::function<void()>& write);
  void save_now(const TrainingState& state);

  const CheckpointConfig& config_;
  Engine& engine_;
  CheckpointStore& checkpoints_;
  std::int64_t saved_step_;
  std::int64_t failed_saves_ = 0;
  double pause_seconds_ = 0.0;
  std::optional<StateSnapshot> snapshot_;     ///< where saves are asynchronous
  std::optional<BackgroundSave> background_;  ///< likewise; reads the snapshot, so it goes first
};

}  // namespace dstrain
