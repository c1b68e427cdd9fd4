// StepPolicy: decides how the ranks of a run go from one step to the next: who waits for whom, what
// they agree on, and what becomes of a step whose gradients cannot be used. The loop around it
// (trainer.h) knows none of that.
#pragma once

#include <functional>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"
#include "engine/train/rank_report.h"
#include "engine/train/step_metrics.h"

namespace dstrain {

/// The result of what all ranks have reported.
struct Agreement {
  double loss = 0.0;            ///< mean over the step's counted targets, nats
  ObjectiveSums sums{};         ///< of all ranks
  int signal = 0;               ///< that asks some rank to stop; 0: none
  bool save_has_ended = false;  ///< the one under way, on every rank
  bool trace_asked = false;     ///< somebody wants one of the steps to come
  // Only on rank 0, by rank.
  std::vector<RankMemory> memory;
  std::vector<RankTime> times;
  std::vector<DeviceReadings> devices;  ///< none where devices are hosts
};

struct StepOutcome {
  EngineStep engine;  ///< this rank's
  StepParams params;  ///< what it was trained with
  Agreement agreement;
};

class StepPolicy {
 public:
  StepPolicy() = default;
  StepPolicy(const StepPolicy&) = delete;
  StepPolicy& operator=(const StepPolicy&) = delete;
  virtual ~StepPolicy() = default;

  /// Resumes where a checkpoint's run stopped.
  virtual void take_up(const TrainingState& state) = 0;
  /// Does one step on the samples from state.consumed_samples on, and advances `state` by it.
  /// `before_update` is that of Engine::train_step. Throws NumericalError where the run cannot
  /// continue.
  virtual StepOutcome step(TrainingState& state,
                           const LoadBatch& data,
                           const std::function<void()>& before_update) = 0;
  /// Agrees without a step on what the ranks report at the end of a run.
  virtual Agreement agree() = 0;
};

/// The facts about this rank that a policy is given.
struct OwnRank {
  /// Everything that it reports but the loss; called once a step, when the step is done.
  std::function<RankReport()> report;
  /// The step of the newest checkpoint; -1: there is none yet.
  std::function<std::int64_t()> saved_step;
};

/// Throws NumericalError: what happened in `step`, what is saved, and what to do about it.
[[noreturn]] void give_up(std::int64_t step,
                          std::int64_t saved_step,
                          const std::string& what,
                          const std::string& advice);

}  // namespace dstrain
