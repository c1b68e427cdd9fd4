// Trainer: the loop. Step after step it trains as its policy has it (step_policy/), evaluates,
// saves, and tells its observers (observers/).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"
#include "engine/train/evaluation.h"
#include "engine/train/evaluation_texts.h"
#include "engine/train/memory_watch.h"
#include "engine/train/observers/run_observer.h"
#include "engine/train/policy/policy_training.h"
#include "engine/train/preference_training.h"
#include "engine/train/replica_watch.h"
#include "engine/train/resume.h"
#include "engine/train/run_saves.h"
#include "engine/train/step_metrics.h"
#include "engine/train/step_policy/step_policy.h"
#include "engine/train/trace/run_trace.h"
#include "engine/train/train_options.h"

namespace dstrain {

class Trainer {
 public:
  /// Opens and checks the data, and sets the engine's parameters: resumes, reads initial weights or
  /// draws, as the config says. `loaded` must outlive it.
  /// `owner` is, on rank 0 of a run that trains, its ownership of the folder; nullptr where nothing
  /// will be written. `overhead_bytes` is the memory expected beside the engine's arena.
  Trainer(const LoadedConfig& loaded,
          Engine& engine,
          const TrainOptions& options,
          const RunOwner* owner,
          std::int64_t overhead_bytes);

  /// Trains until training.steps, or until a signal; the last step is saved either way. Where a
  /// checkpoint has all steps, nothing is done or written.
  TrainResult run();
  /// Steps that are done.
  [[nodiscard]] std::int64_t step() const { return state_.step; }

 private:
  /// Evaluates instead of training. Collective.
  TrainResult evaluate_alone();
  /// The same, source by source. Collective.
  TrainResult evaluate_sources();
  /// Takes up the state of the run from a checkpoint; its tensors are loaded already.
  void take_up(const TrainingState& resumed);
  /// Collective. Lets the checkpoints take the tokenizer of the run's data along, and say which
  /// weights they do not hold.
  void remember_sources(const std::optional<ResumedFrom>& from);
  StepMetrics train_one();
  void tell_of_growth(std::int64_t samples, std::int64_t sequence);
  /// The report of this rank after a step.
  RankReport report();
  /// Seconds that this rank has waited for others since this was last called, by whom for.
  std::array<double, kWaitsFor> take_waits();
  void evaluate_if_due(StepMetrics& metrics);
  /// Collective. Samples the texts of an evaluation and logs them; on rank 0, returns them.
  std::vector<SampledText> tell_texts();
  /// Over the validation data.
  SourceLoss validate();
  [[nodiscard]] std::optional<PreferenceMetrics> preferences_of(const ObjectiveSums& sums) const;
  void enter(RunPhase phase) const;
  /// Adds, on rank 0 of a run that trains, the observers that show how it goes; on every rank,
  /// those that watch it from outside.
  void add_observers();
  void tell_step(const StepMetrics& metrics) const;
  void tell_end() const;
  /// Brings what a checkpoint has beside tensors up to date. Collective.
  void take_numbers();
  /// Called before a save, which must not happen with parameters that are not finite, nor with
  /// copies that differ.
  void check_state();

  const LoadedConfig& loaded_;
  const Config& config_;
  Engine& engine_;
  TrainOptions options_;
  const RunOwner* owner_;
  MemoryWatch memory_;
  double peak_flops_ = 0.0;      ///< a second, of all ranks' devices by data sheet; 0: not known
  double left_out_flops_ = 0.0;  ///< left_out_flops_per_token()
  double head_flops_ = 0.0;      ///< of a token whose target counts
  bool is_rank0_;
  std::optional<BatchLoader> train_data_;  ///< none: completions are sampled
  LoadBatch load_train_;
  std::optional<BatchLoader> validation_data_;
  std::optional<EvaluationTexts> texts_;           ///< none: the model continues none
  std::optional<PolicyTraining> rewards_;          ///< none: nothing is sampled and rewarded
  std::optional<PreferenceTraining> preferences_;  ///< none: the next token alone is trained
  CheckpointStore checkpoints_;
  TrainingState state_;
  std::unique_ptr<StepPolicy> policy_;
  bool is_done_ = false;  ///< before the first step
  bool save_is_due_ = false;
  bool save_has_ended_ = false;
  int signal_ = 0;
  bool trace_asked_ = false;
  std::unique_ptr<RunSaves> saves_;
  std::optional<RunTrace> trace_;  ///< of a run that trains
  std::optional<ReplicaWatch> replicas_;
  std::chrono::steady_clock::time_point step_start_;
  std::array<double, kWaitsFor> own_waits_{};  ///< of the step, until this rank reported
  std::vector<WaitFor> waits_for_;             ///< by group of the WaitClock
  RunObservers observers_;
  std::optional<double> last_validation_loss_;
  std::int64_t tokens_ = 0;                            ///< that the run has seen
  std::pair<std::int64_t, std::int64_t> told_size_{};  ///< sequences of the last step, their tokens
};

}  // namespace dstrain
