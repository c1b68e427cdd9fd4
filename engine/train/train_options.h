// TrainOptions: what one rank needs to know about a run besides its config: where it computes, who
// watches, and what it was started for; and TrainResult, what it returns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/network_address.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/checkpoint/owner/run_owner.h"
#include "engine/comm/activity.h"
#include "engine/comm/store.h"
#include "engine/comm/wait_clock.h"
#include "engine/train/run_goal.h"

namespace dstrain {

/// How rank 0 shows progress on stderr.
enum class Progress : std::uint8_t {
  kNone,
  kLines,    ///< a plain line every steps_per_print steps
  kTerminal  ///< also a live line, each version ended by '\r'
};

struct TrainOptions {
  int threads = 0;  ///< compute threads of this rank; 0: as many as the process may run on
  int gpu = 0;      ///< of those that this process sees, where it computes on one
  std::string gpu_name = "";  ///< "cuda:1", as its host counts; empty: as this process does
  int ranks_on_gpu = 1;       ///< that take turns on it
  /// The store by which ranks on GPUs find each other; may be nullptr in a world of one.
  Store* store = nullptr;
  /// Deadline of a collective between GPUs.
  std::chrono::milliseconds collective_timeout{600'000};
  Progress progress = Progress::kLines;
  /// Set to a signal's number by a handler: finish the step, save, return. Polled once a step;
  /// all ranks agree on the step. May be nullptr.
  const std::atomic<int>* stop_signal = nullptr;
  /// Records what this rank does, for an observer outside the process. May be nullptr.
  ActivityRecorder* activity = nullptr;
  /// Makes data, weights and tokenizer that do not belong together a warning.
  bool allow_tokenizer_mismatch = false;
  /// The claim with which rank 0 takes the run's folder; nullptr: that of a job of its own.
  const OwnerClaim* owner = nullptr;
  RunGoal goal = RunGoal::kTrain;
  /// Counts the waits of this rank's collectives. May be nullptr.
  WaitClock* waits = nullptr;
  /// Where rank 0 answers Prometheus. Absent: nowhere.
  std::optional<HostAndPort> metrics_at{};
  /// Sees each change of the disk that a save is about to make (tests).
  DiskProbe disk_probe = {};
};

struct TrainResult {
  std::int64_t step = 0;  ///< optimizer steps done, resumed ones included
  int stopped_by = 0;     ///< signal number, or 0 if all steps were done
  /// The number of checkpoints that could not be written (checkpoint.on_save_failure: "continue").
  /// The last one of the run was written, or the run would have thrown.
  std::int64_t failed_saves = 0;
};

}  // namespace dstrain
