// RunObserver: follows the progress of a run. Observers do not change the run; one that cannot do
// its part throws, which ends the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/activity.h"
#include "engine/train/step_metrics.h"

namespace dstrain {

/// How a run has ended, once its last state is saved.
struct EndOfRun {
  std::int64_t step = 0;
  int signal = 0;                         ///< that stopped it; 0: all steps were done
  std::optional<double> validation_loss;  ///< the last there was
  bool by_pairs = false;                  ///< it is of preferences, not of the next token
  std::vector<RankMemory> memory;         ///< by rank; on rank 0
  std::vector<double> epochs;             ///< how often each source of data.train was gone through
  std::int64_t saved_step = 0;
  std::int64_t failed_saves = 0;  ///< before the last one
  std::optional<std::filesystem::path> checkpoint;
};

class RunObserver {
 public:
  RunObserver() = default;
  RunObserver(const RunObserver&) = delete;
  RunObserver& operator=(const RunObserver&) = delete;
  virtual ~RunObserver() = default;

  virtual void on_phase(RunPhase /*phase*/) noexcept {}
  /// Called after each step, and after an evaluation that follows it. `is_last` says that no other
  /// step follows.
  virtual void on_step(const StepMetrics& /*metrics*/, bool /*is_last*/) {}
  virtual void on_end(const EndOfRun& /*end*/) {}
};

using RunObservers = std::vector<std::unique_ptr<RunObserver>>;

/// A phase other than training, which it returns to.
class ObservedPhase {
 public:
  ObservedPhase(const RunObservers& observers, RunPhase phase) : observers_(observers) {
    tell(phase);
  }
  ObservedPhase(const ObservedPhase&) = delete;
  ObservedPhase& operator=(const ObservedPhase&) = delete;
  ~ObservedPhase() { tell(RunPhase::kTraining); }

 private:
  void tell(RunPhase phase) const noexcept {
    for (const auto& observer : observers_) {
      observer->on_phase(phase);
    }
  }

  const RunObservers& observers_;
};

}  // namespace dstrain
