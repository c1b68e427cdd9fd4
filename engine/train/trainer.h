// Trainer: the loop. Step after step it trains, agrees with the other ranks on loss and signals,
// evaluates, saves, and tells the user.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/data/batch_loader.h"
#include "engine/optim/loss_scaler.h"
#include "engine/train/engine.h"
#include "engine/train/metrics.h"
#include "engine/train/progress.h"
#include "engine/train/replica_watch.h"
#include "engine/train/resume.h"
#include "engine/train/run_saves.h"
#include "engine/train/run_training.h"

namespace dstrain {

class Trainer {
 public:
  /// Opens and checks the data, resumes where the config says so. `loaded` must outlive it.
  /// `owner`: on rank 0 of a run that trains, what its folder belongs to it by; nullptr where
  /// nothing will be written. `overhead_bytes`: memory expected beside the engine's arena.
  Trainer(const LoadedConfig& loaded,
          Engine& engine,
          const TrainOptions& options,
          const RunOwner* owner,
          std::int64_t overhead_bytes);

  /// Until training.steps, or until a signal: the last step is saved either way. Where a checkpoint
  /// has all of them, nothing is done, nor has anything been written.
  TrainResult run();

 private:
  /// What follows from the reports of all ranks after a step.
  struct Agreement {
    double loss = 0.0;
    int signal = 0;
    bool save_has_ended = false;  ///< the one under way, on every rank
    // On rank 0, by rank.
    std::vector<RankMemory> memory;
    std::vector<DeviceReadings> devices;  ///< none where devices are hosts
  };

  /// Instead of training. Collective.
  TrainResult evaluate_alone();
  /// Takes up what a checkpoint has of the run but its tensors, which are loaded.
  void take_up(const TrainingState& resumed);
  /// Collective. Lets the checkpoints take the tokenizer of the run's data along.
  void remember_tokenizer(const std::optional<ResumedFrom>& from);
  StepMetrics train_one();
  /// Everything of a step but its gradients: what it is trained with.
  [[nodiscard]] StepParams params_of_next_step() const;
  /// Counts a step whose gradients were not finite, as DeepSpeed does: the data goes on, optimizer
  /// and schedule do not. Throws NumericalError where skipping cannot help.
  void skip(const StepParams& params, double loss, double grad_norm);
  /// "first in the gradient of blocks.1.mlp.up.weight on rank 2, micro-batch 0".
  std::string culprit(const StepParams& params);
  [[noreturn]] void give_up(const std::string& what, const std::string& advice) const;
  Agreement agree(double local_loss_sum);
  /// Looks at the memory that this rank computes in: its process's, or its GPU's.
  RankMemory look_at_memory();
  void evaluate_if_due(StepMetrics& metrics);
  /// A line that cannot be written is treated as a save that cannot be: it stops the run, or waits.
  void write(const StepMetrics& metrics);
  void tell_phase(RunPhase phase) const;
  /// Before a save: never of parameters that are not finite, nor of copies that differ.
  void check_state();

  const LoadedConfig& loaded_;
  const Config& config_;
  Engine& engine_;
  TrainOptions options_;
  const RunOwner* owner_;
  std::int64_t overhead_bytes_;
  std::int64_t peak_bytes_ = 0;  ///< of RankMemory
  double peak_flops_ = 0.0;      ///< a second, of all ranks' devices by data sheet; 0: not known
  bool is_rank0_;
  BatchLoader train_data_;
  LoadBatch load_train_;
  std::optional<BatchLoader> validation_data_;
  CheckpointStore checkpoints_;
  TrainingState state_;
  LossScaler scaler_;
  bool is_done_ = false;  ///< before the first step
  bool save_is_due_ = false;
  bool save_has_ended_ = false;
  int signal_ = 0;
  std::unique_ptr<RunSaves> saves_;
  std::optional<ReplicaWatch> replicas_;
  std::unique_ptr<MetricsFiles> metrics_;
  std::optional<double> last_validation_loss_;
};

}  // namespace dstrain
