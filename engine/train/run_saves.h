// RunSaves: decides how a run's state goes to disk, by which thread, and what becomes of the run
// where that fails (checkpoint.async, checkpoint.on_save_failure).
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
  /// `resumed_step` is that of the checkpoint that the run began from; -1: none.
  RunSaves(const CheckpointConfig& config,
           Engine& engine,
           CheckpointStore& checkpoints,
           std::int64_t resumed_step);

  /// The step of the newest checkpoint; -1: there is none yet.
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }
  /// The number of saves that failed and did not stop the run.
  [[nodiscard]] std::int64_t failed_saves() const { return failed_saves_; }
  /// Whether a save is being written during training.
  [[nodiscard]] bool under_way() const { return background_ && background_->under_way(); }
  /// Whether this rank's part of it has ended.
  [[nodiscard]] bool has_ended() const { return background_ && background_->has_ended(); }

  /// Collective, all at the same step. Takes note of how the save under way ended; waits for that.
  /// Throws StorageError if it failed and failures stop the run.
  void finish();
  /// Collective. Makes a save that is due, after the one under way; throws as finish() does.
  void save(const TrainingState& state);
  /// Collective. Makes the run's last save, which is complete once this returns. Any failure of it
  /// throws.
  void save_last(const TrainingState& state);

  /// The seconds that training stood still for saves since this was last called.
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
